#pragma once
// A synthetic tape (paper E.2): what the cores decided in virtual time, as the records that a real
// run leaves, so that a model can be trained under the failures of a simulated cluster. Nothing was
// trained when it is written: there are no published bytes and each step's loss is 0.
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/diloco/event_tape.h"
#include "simulator/world.h"

namespace archipelago::simulator {

// What the records say besides what happens.
struct TapeFacts {
  std::string spec;            // the resolved DecoupledTraining
  std::string layout_digest;   // of its model, hex
  std::string dataset_digest;  // of its training data
  std::string kernels;         // that it shall be trained with; empty: whichever
  std::int32_t threads = 1;    // of each learner
  std::uint64_t init_seed = 1;
  diloco::tape::Rules rules;
};

class TapeRecorder final : public WorldObserver {
 public:
  // The sink gets the settings at once, and before each round the events until then.
  TapeRecorder(TapeFacts facts, std::function<void(diloco::tape::Record)> sink);
  void started(const diloco::UnitKey& who, const std::string& datacenter) override;
  void did(const diloco::UnitKey& who, diloco::tape::LearnerEvent event) override;
  void committed(const diloco::StartMerge& merge) override;
  void published_final(GlobalStep version) override;
  void flush();  // the events since the last round

 private:
  TapeFacts facts_;
  std::function<void(diloco::tape::Record)> sink_;
  std::map<std::pair<std::string, Incarnation>, diloco::tape::Batch> pending_;
};

}  // namespace archipelago::simulator
