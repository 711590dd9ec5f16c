#include "simulator/tape_recorder.h"

#include <variant>

namespace archipelago::simulator {
namespace tape = diloco::tape;

TapeRecorder::TapeRecorder(TapeFacts facts, std::function<void(tape::Record)> sink)
    : facts_(std::move(facts)), sink_(std::move(sink)) {
  sink_(tape::Opened{1, facts_.spec});
}

void TapeRecorder::started(const diloco::UnitKey& who, const std::string& datacenter) {
  did(who, tape::Start{who.session, datacenter, facts_.layout_digest, facts_.dataset_digest,
                       facts_.kernels, facts_.threads});
}

void TapeRecorder::did(const diloco::UnitKey& who, tape::LearnerEvent event) {
  if (auto* seed = std::get_if<tape::Seed>(&event)) seed->init_seed = facts_.init_seed;
  tape::Batch& batch = pending_[{who.unit, who.incarnation}];
  batch.unit = who.unit;
  batch.incarnation = who.incarnation;
  batch.events.push_back(std::move(event));
}

void TapeRecorder::flush() {
  for (auto& [key, batch] : pending_) {
    if (batch.events.empty()) continue;
    const std::int64_t next = batch.upto();
    sink_(std::move(batch));
    batch.events.clear();
    batch.from = next;
  }
}

void TapeRecorder::committed(const diloco::StartMerge& merge) {
  flush();
  tape::Round round{merge.t, merge.fragment, facts_.rules, {}};
  for (const auto& member : merge.members)
    round.members.push_back({member.key.who.unit, member.key.who.incarnation, member.key.attempt,
                             member.counters.tokens, member.counters.steps});
  sink_(std::move(round));
}

void TapeRecorder::published_final(GlobalStep version) { sink_(tape::Final{version}); }

}  // namespace archipelago::simulator
