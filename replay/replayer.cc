#include "replay/replayer.h"

#include <cstring>
#include <set>

#include "common/config/parse.h"
#include "common/diloco/data_ledger.h"
#include "learner/data.h"
#include "learner/inner_of.h"
#include "learner/lr_schedule.h"
#include "replay/engine.h"
#include "replay/plan.h"

namespace archipelago::replay {
namespace tape = diloco::tape;
namespace {

constexpr std::size_t kMaxStepSequences = std::size_t{1} << 20;

struct Settings {  // of one start of the outer optimizer
  config::TrainingSpec spec;
  learner::TokenFile train;
};

struct Replica {
  LearnerKey key;
  std::string name;
  std::size_t position = 0;  // events done
  bool busy = false;
  std::int64_t local_step = 0;
  const Settings* settings = nullptr;
  config::InnerSpec inner;
  int threads = 1;
  bool joined = false;
};

struct Copy {  // of inner optimizer state
  std::vector<std::byte> state;
  LocalStep local_step;
};

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

class Replayer {
 public:
  Replayer(const TapeContent& content, ReplayOptions options, const ReplayHooks& hooks)
      : content_(content), options_(std::move(options)), hooks_(hooks) {}

  Result<ReplayReport> run();

  // One event each: what the learner did then.
  Status act(Replica& replica, const tape::Start& start);
  Status act(Replica& replica, const tape::Seed& seed);
  Status act(Replica& replica, const tape::Step& step);
  Status act(Replica& replica, const tape::Snapshot& snapshot);
  Status act(Replica& replica, const tape::Apply& apply);
  Status act(Replica& replica, const tape::Donate& donate);
  Status act(Replica& replica, const tape::Restore& restore);
  Status act(Replica&, const tape::Fresh&) { return {}; }  // moments are fresh from the start
  Status act(Replica& replica, const tape::Gap&) {
    return fail(ErrorKind::kConflict, replica.name + ": events are missing");
  }

 private:
  Result<const Settings*> settings_of(std::size_t opened);
  Status make_engine();
  Status follow();
  Status advance(const LearnerKey& key, std::size_t upto);
  Status make_round(const tape::Round& round);
  Status publish_final();
  void compare(GlobalStep t, std::int32_t p, const std::string& members);
  Result<std::vector<std::int32_t>> read_tokens(const Replica& replica,
                                                const tape::Step& step) const;
  void warn(const std::string& text) {
    if (told_.insert(text).second) report_.warnings.push_back(text);
  }

  const TapeContent& content_;
  ReplayOptions options_;
  const ReplayHooks& hooks_;
  ReplayPlan plan_;
  ReplayReport report_;
  std::map<std::size_t, Settings> settings_;
  std::unique_ptr<Engine> engine_;
  std::map<LearnerKey, Replica> replicas_;
  std::map<SnapshotKey, Upload> uploads_;
  std::map<DonationKey, Copy> donations_;
  std::map<std::pair<GlobalStep, std::int32_t>, Published> versions_;  // still to be applied
  std::string first_loss_;  // the first learner step whose loss differs
  std::set<std::string> told_;
  int threads_ = 0;
  bool seeded_ = false;
  bool radial_embedding_ = false;  // a run's own; the tape has the others' rule a round
};

Result<const Settings*> Replayer::settings_of(std::size_t opened) {
  if (const auto known = settings_.find(opened); known != settings_.end()) return &known->second;
  if (opened >= content_.opened.size())
    return fail(ErrorKind::kInvalid, "the tape does not have the run's settings");
  const auto training = config::parse_training(content_.opened[opened].spec);
  if (!training)
    return fail(ErrorKind::kUnsupported, "the settings on the tape are refused:\n" +
                                             config::format_errors(training.error()));
  Settings settings;
  settings.spec = training->spec;
  const auto& spec = settings.spec;
  const std::string path = options_.train.empty() ? spec.data.train.path : options_.train;
  ARCH_TRY(settings.train,
           learner::TokenFile::open(path, spec.data.train.format, spec.model.context_length,
                                    spec.model.vocab_size));
  return &settings_.emplace(opened, std::move(settings)).first->second;
}

Status Replayer::make_engine() {
  ARCH_TRY(const Settings* settings, settings_of(content_.learners.at(*plan_.seeder).opened));
  const auto& spec = settings->spec;
  EngineOptions options;
  options.shapes = hooks_.shapes(spec.model);
  options.fragments = spec.sync.fragments;
  ARCH_TRY(options.uplink, codec::parse_codec(config::to_string(spec.sync.uplink)));
  ARCH_TRY(options.scheme, diloco::parse_scheme(spec.sync.fragmentation));
  options.published_bf16 = spec.sync.published == config::Precision::kBf16;
  radial_embedding_ = spec.sync.embedding_merge == config::MergeRule::kRda;
  options.init_path = options_.weights.empty() ? spec.model.init_path : options_.weights;
  options.blend = spec.sync.blend;
  options.recovery_precision = spec.recovery.precision;
  options.threads = options_.merge_threads;
  ARCH_TRY(engine_, Engine::create(std::move(options)));
  return {};
}

// --- a learner's events

Status Replayer::act(Replica& replica, const tape::Start& start) {
  ARCH_TRY(replica.settings, settings_of(content_.learners.at(replica.key).opened));
  replica.inner = learner::inner_of(replica.settings->spec, start.datacenter);
  replica.threads = start.threads;
  if (const std::string own = engine_->layout().digest().hex(); own != start.layout_digest)
    return fail(ErrorKind::kInvalid, replica.name + ": the tape's model has layout " +
                                         start.layout_digest + ", here it is " + own);
  if (const std::string own = replica.settings->train.digest(); own != start.dataset_digest)
    return fail(ErrorKind::kInvalid, replica.name + " trained on data " + start.dataset_digest +
                                         ", here they are " + own);
  ARCH_TRY(auto trainer,
           hooks_.trainer(replica.settings->spec.model, replica.inner, start.threads));
  threads_ = start.threads;  // that is what it was made with
  const auto numerics = trainer->numerics();
  if (numerics.threads != start.threads)
    warn(replica.name + " trained with " + std::to_string(start.threads) + " threads, here it is " +
         std::to_string(numerics.threads) + ": the bits may differ");
  if (!start.kernels.empty() && numerics.kernels != start.kernels)
    warn(replica.name + " trained with " + start.kernels + ", here it is " + numerics.kernels +
         ": the bits may differ");
  ARCH_TRY_VOID(engine_->join(replica.name, std::move(trainer)));
  replica.joined = true;
  ++report_.learners;
  return {};
}

Status Replayer::act(Replica& replica, const tape::Seed& seed) {
  // Of several that were asked, each in its turn, the bytes are the same: the seed's.
  if (seeded_) return engine_->initialise(replica.name, seed.init_seed);
  seeded_ = true;
  ARCH_TRY_VOID(engine_->seed(replica.name, seed.init_seed));
  for (std::int32_t p = 0; p < engine_->fragments().count(); ++p) {
    versions_[{GlobalStep(0), p}] = engine_->published(p);
    compare(GlobalStep(0), p, "the seed of " + replica.name);
  }
  return {};
}

Result<std::vector<std::int32_t>> Replayer::read_tokens(const Replica& replica,
                                                        const tape::Step& step) const {
  const Settings& settings = *replica.settings;
  const auto row = static_cast<std::size_t>(settings.spec.model.context_length + 1);
  std::size_t sequences = 0;
  for (const auto& run : step.runs) sequences += run.count;
  if (sequences > kMaxStepSequences)
    return fail(ErrorKind::kInvalid, "a step of " + std::to_string(sequences) +
                                         " sequences, allowed " +
                                         std::to_string(kMaxStepSequences));
  std::vector<std::int32_t> tokens(sequences * row);
  std::size_t at = 0;
  for (const auto& run : step.runs) {
    const std::uint32_t size = diloco::block_size(settings.train.sequences(), run.block);
    if (run.first > size || run.count > size - run.first)
      return fail(ErrorKind::kInvalid, "a step on sequences " + std::to_string(run.first) + " to " +
                                           std::to_string(run.first + run.count) + " of block " +
                                           std::to_string(run.block) + ", which has " +
                                           std::to_string(size));
    for (std::uint32_t i = 0; i < run.count; ++i, at += row) {
      const std::uint64_t sequence = diloco::sequence_index(
          settings.spec.inner.seed, settings.train.sequences(), run.block, run.first + i);
      ARCH_TRY_VOID(settings.train.read(sequence, std::span(tokens).subspan(at, row)));
    }
  }
  return tokens;
}

Status Replayer::act(Replica& replica, const tape::Step& step) {
  ARCH_TRY(const auto tokens, read_tokens(replica, step));
  if (threads_ != replica.threads) hooks_.use_threads(threads_ = replica.threads);
  const double rate =
      learner::learning_rate(replica.inner, step.schedule_step, step.budget) * step.rate_scale;
  ARCH_TRY(const auto result, engine_->step(replica.name, tokens, rate));
  ++replica.local_step;
  ++report_.learner_steps;
  const bool trained_before = !content_.published.empty();  // not a synthetic tape
  if (trained_before && first_loss_.empty() &&
      (!same_bits(result.loss, step.loss) || result.skipped != step.skipped))
    first_loss_ = replica.name + ", local step " + std::to_string(replica.local_step) + ": loss " +
                  std::to_string(result.loss) + ", on the tape " + std::to_string(step.loss);
  return {};
}

Status Replayer::act(Replica& replica, const tape::Snapshot& snapshot) {
  const SnapshotKey key{replica.key, snapshot.t, snapshot.attempt};
  const auto round = content_.rounds.find(snapshot.t);
  if (round == content_.rounds.end() || snapshot.t > plan_.until) return {};
  for (const auto& member : round->second.members) {
    if (member.unit != replica.key.unit || member.incarnation != replica.key.incarnation ||
        member.attempt != snapshot.attempt)
      continue;
    if (!engine_->holds(replica.name, snapshot.fragment, snapshot.base))
      return fail(ErrorKind::kInvalid, replica.name + " contributed to global step " +
                                           std::to_string(snapshot.t.value) +
                                           " from a base that it did not hold");
    ARCH_TRY(uploads_[key], engine_->snapshot(replica.name, snapshot.fragment));
  }
  return {};
}

Status Replayer::act(Replica& replica, const tape::Apply& apply) {
  const auto version = versions_.find({apply.version, apply.fragment});
  if (version == versions_.end())
    return fail(ErrorKind::kInvalid, replica.name + ": version " +
                                         std::to_string(apply.version.value) + " of fragment " +
                                         std::to_string(apply.fragment) + " is not there");
  ARCH_TRY_VOID(engine_->apply(replica.name, apply.fragment, version->second));
  if (--plan_.version_uses[version->first] <= 0) versions_.erase(version);
  return {};
}

Status Replayer::act(Replica& replica, const tape::Donate& donate) {
  const DonationKey key{replica.key, donate.id};
  const auto last = plan_.donations.find(key);
  if (!plan_.donation_uses.contains(key) || last == plan_.donations.end() ||
      last->second != replica.position)
    return {};
  ARCH_TRY(auto state, engine_->inner_state(replica.name));
  donations_[key] = {std::move(state), LocalStep(replica.local_step)};
  return {};
}

Status Replayer::act(Replica& replica, const tape::Restore& restore) {
  const DonationKey key{{restore.donor, restore.incarnation}, restore.id};
  if (!donations_.contains(key)) ARCH_TRY_VOID(advance(key.first, plan_.donations.at(key) + 1));
  const auto state = donations_.find(key);
  if (state == donations_.end())
    return fail(ErrorKind::kInvalid,
                replica.name + ": inner state of " + to_string(key.first) + " is not there");
  if (restore.local_step != state->second.local_step)
    warn(replica.name + " took inner state of " + to_string(key.first) + " as of local step " +
         std::to_string(restore.local_step.value) + ", here the copy is of local step " +
         std::to_string(state->second.local_step.value));
  ARCH_TRY_VOID(engine_->restore_inner_state(replica.name, state->second.state));
  if (--plan_.donation_uses[key] <= 0) donations_.erase(state);
  return {};
}

Status Replayer::advance(const LearnerKey& key, std::size_t upto) {
  Replica& replica = replicas_[key];
  if (replica.name.empty()) {
    replica.key = key;
    replica.name = to_string(key);
  }
  if (replica.busy)
    return fail(ErrorKind::kInvalid, replica.name + ": inner state goes round in a circle");
  replica.busy = true;
  const auto& events = content_.learners.at(key).events;
  for (; replica.position < upto; ++replica.position) {
    const auto& event = events[replica.position];
    if (!replica.joined && !std::holds_alternative<tape::Start>(event))
      return fail(ErrorKind::kInvalid, replica.name + ": its start is not on the tape");
    ARCH_TRY_VOID(std::visit([&](const auto& one) { return act(replica, one); }, event));
  }
  replica.busy = false;
  if (replica.joined && replica.position >= plan_.needed.at(key)) {
    engine_->leave(replica.name);  // nothing more rests on it
    replica.joined = false;
  }
  return {};
}

// --- global steps

void Replayer::compare(GlobalStep t, std::int32_t p, const std::string& members) {
  const auto expected = content_.published.find({t, p});
  if (expected == content_.published.end()) return;
  const std::uint64_t digest = Engine::digest(engine_->published(p));
  if (digest == expected->second) {
    ++report_.compared;
    return;
  }
  if (!report_.divergence.empty()) return;
  report_.divergence = "first divergence: global step " + std::to_string(t.value) + ", fragment " +
                       std::to_string(p) + ": published bytes " + hex(digest) + ", on the tape " +
                       hex(expected->second) + "; members: " + members;
  if (!first_loss_.empty()) report_.divergence += "; before it, " + first_loss_;
}

Status Replayer::make_round(const tape::Round& round) {
  std::vector<Engine::Contribution> members;
  std::string counters;  // of members whose weight on the tape is not that of their own counters
  for (const auto& member : round.members) {
    const LearnerKey key{member.unit, member.incarnation};
    const SnapshotKey snapshot{key, round.t, member.attempt};
    ARCH_TRY_VOID(advance(key, plan_.snapshots.at(snapshot) + 1));
    const Upload& upload = uploads_.at(snapshot);
    if (upload.fragment != round.fragment)
      return fail(ErrorKind::kInvalid, "global step " + std::to_string(round.t.value) + " merges " +
                                           "fragment " + std::to_string(round.fragment) + ", " +
                                           to_string(key) + " contributed fragment " +
                                           std::to_string(upload.fragment));
    if (upload.counters.tokens != member.tokens || upload.counters.steps != member.steps)
      counters += "; " + to_string(key) + " has " + std::to_string(upload.counters.tokens) +
                  " tokens in " + std::to_string(upload.counters.steps) + " steps here";
    members.push_back({&upload, {member.steps, member.tokens}});
  }
  outer::OuterRules rules;
  rules.step = {round.rules.learning_rate, round.rules.momentum, round.rules.nesterov};
  rules.radial = {round.rules.radial, radial_embedding_};
  ARCH_TRY(rules.downlink, codec::parse_codec(round.rules.downlink));
  ARCH_TRY_VOID(engine_->merge(round.t, round.fragment, rules, members));
  if (plan_.version_uses.contains({round.t, round.fragment}))
    versions_[{round.t, round.fragment}] = engine_->published(round.fragment);
  compare(round.t, round.fragment, members_text(round) + counters);
  std::erase_if(uploads_, [&](const auto& entry) { return std::get<1>(entry.first) <= round.t; });
  return {};
}

Status Replayer::publish_final() {
  if (!content_.final_version || !plan_.stopped.empty() || options_.until) return {};
  engine_->publish_masters(*content_.final_version);
  for (std::int32_t p = 0; p < engine_->fragments().count(); ++p)
    compare(*content_.final_version, p, "the final publication");
  hooks_.made(*content_.final_version, *engine_);
  return {};
}

Status Replayer::follow() {
  const auto& seeder = content_.learners.at(*plan_.seeder).events;
  std::size_t seed = 0;
  while (!std::holds_alternative<tape::Seed>(seeder[seed])) ++seed;
  ARCH_TRY_VOID(advance(*plan_.seeder, seed + 1));
  for (const auto& [t, round] : content_.rounds) {
    if (t > plan_.until || !report_.divergence.empty()) break;
    const Status made = make_round(round);
    if (!made) return fail(made.error().with_context("global step " + std::to_string(t.value)));
    report_.reached = t;
    hooks_.progress(t, plan_.until);
    hooks_.made(t, *engine_);
  }
  if (report_.divergence.empty()) ARCH_TRY_VOID(publish_final());
  // All bytes are the same and a loss is not: only the tape's word about it differs.
  if (report_.divergence.empty() && !first_loss_.empty())
    report_.divergence = "the published bytes are the same, but " + first_loss_;
  return {};
}

Result<ReplayReport> Replayer::run() {
  ARCH_TRY(plan_, plan_replay(content_, options_.until));
  ARCH_TRY_VOID(make_engine());
  ARCH_TRY_VOID(follow());
  report_.stopped = plan_.stopped;
  return std::move(report_);
}

}  // namespace

Result<ReplayReport> replay(const TapeContent& content, const ReplayOptions& options,
                            const ReplayHooks& hooks) {
  return Replayer(content, options, hooks).run();
}

}  // namespace archipelago::replay
