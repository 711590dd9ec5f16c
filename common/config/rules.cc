#include "common/config/rules.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/config/estimate.h"
#include "common/config/names.h"

namespace archipelago::config {
namespace {

class Rules {
 public:
  explicit Rules(ErrorList& errors) : errors_(errors) {}

  // True when the rule should be judged: none of the fields it reads is wrong already.
  [[nodiscard]] bool on(std::initializer_list<std::string> paths) const {
    return std::none_of(paths.begin(), paths.end(),
                        [&](const std::string& path) { return errors_.touches(path); });
  }
  void fail(std::string path, std::string given, std::string problem, std::string allowed,
            std::string hint = "") {
    errors_.add({std::move(path), std::move(given), std::move(allowed), std::move(hint),
                 std::move(problem), 0});
  }
  void fail(std::string path, std::int64_t given, std::string problem, std::string allowed,
            std::string hint = "") {
    fail(std::move(path), std::to_string(given), std::move(problem), std::move(allowed),
         std::move(hint));
  }

 private:
  ErrorList& errors_;
};

std::string number(std::int64_t value) { return std::to_string(value); }

std::string divisors(std::int64_t value) {
  std::vector<std::string> all;
  for (std::int64_t i = 1; i <= value && i <= 4096 && all.size() < 16; ++i) {
    if (value % i == 0) all.push_back(number(i));
  }
  return join(all, ", ");
}

void check_vocabulary(const TrainingSpec& spec, Rules& rules) {
  const ModelSpec& m = spec.model;
  if (!rules.on({"spec.model.vocabSize", "spec.data.train.format"})) return;
  if (spec.data.train.format == DataFormat::kText && m.vocab_size < 256) {
    rules.fail("spec.model.vocabSize", m.vocab_size,
               "is too small for data.train.format text (bytes)", "256 or more");
  }
  if (spec.data.train.format == DataFormat::kTokensU16 && m.vocab_size > 65536) {
    rules.fail("spec.model.vocabSize", m.vocab_size, "has tokens that tokens-u16 can't hold",
               "at most 65536", "use tokens-u32");
  }
}

void check_model(const TrainingSpec& spec, Rules& rules) {
  const ModelSpec& m = spec.model;
  if (rules.on({"spec.model.hiddenSize", "spec.model.heads", "spec.model.headDim"})) {
    const std::int64_t head = m.head_size();
    if (m.head_dim > 0) {
      if (head % 2 != 0)
        rules.fail("spec.model.headDim", m.head_dim, "is odd",
                   "an even number (rotary embedding turns pairs), or 0 for hiddenSize / heads");
    } else if (m.hidden_size % m.heads != 0) {
      rules.fail("spec.model.heads", m.heads, "does not divide hiddenSize " + number(m.hidden_size),
                 "a divisor of hiddenSize");
    } else if (head % 2 != 0) {
      rules.fail("spec.model.heads", m.heads, "gives heads of the odd size " + number(head),
                 "hiddenSize / heads even (rotary embedding turns pairs)");
    }
  }
  if (rules.on({"spec.model.heads", "spec.model.kvHeads"}) && m.heads % m.kv_heads != 0) {
    rules.fail("spec.model.kvHeads", m.kv_heads, "does not divide heads " + number(m.heads),
               divisors(m.heads));
  }
  if (rules.on({"spec.model.attentionBias", "spec.model.qkNorm"}) && m.qk_norm &&
      m.attention_bias == AttentionBias::kQkv) {
    rules.fail("spec.model.attentionBias", "qkv", "goes with no qkNorm: no public family has both",
               "none, all");
  }
  if (rules.on({"spec.model.rope"}) && m.rope.scaling == RopeScaling::kLlama3 &&
      m.rope.low_freq_factor >= m.rope.high_freq_factor) {
    rules.fail("spec.model.rope.lowFreqFactor", nlohmann::json(m.rope.low_freq_factor).dump(),
               "is not below highFreqFactor", "less than highFreqFactor");
  }
  check_vocabulary(spec, rules);
}

// No fragment may be empty (common/diloco/fragmentation.h says who goes where).
void check_fragments(const TrainingSpec& spec, Rules& rules) {
  if (!rules.on({"spec.sync.fragments", "spec.sync.fragmentation", "spec.model"})) return;
  const SyncSpec& s = spec.sync;
  const ModelSize size = model_size(spec.model);
  const std::int64_t per_layer = spec.model.tensors_per_layer();
  const auto refuse = [&](std::int64_t most, const std::string& problem, const std::string& hint) {
    if (s.fragments > most)
      rules.fail("spec.sync.fragments", s.fragments, problem, "at most " + number(most), hint);
  };
  if (s.fragmentation == "balanced") {
    refuse(size.tensors, "is more than the model's " + number(size.tensors) + " tensors",
           "a layer has " + number(per_layer) + " tensors; fragmentation split cuts tensors");
  } else if (s.fragmentation == "layer") {
    refuse(spec.model.layers + 1, "is more than the model's layers and one",
           "fragmentation layer puts whole layers into all fragments but the first");
  } else if (s.fragmentation == "tensor") {
    refuse(per_layer * spec.model.layers + 1,
           "is more than the tensors of the model's layers and one",
           "a layer has " + number(per_layer) + " tensors");
  } else {
    const std::int64_t row = std::max({spec.model.hidden_size, spec.model.intermediate_size,
                                       spec.model.heads * spec.model.head_size()});
    refuse(size.parameters / row,
           "gives fragments smaller than the model's longest row, " + number(row) + " elements",
           "fragmentation split cuts between rows");
  }
}

void check_schedule(const TrainingSpec& spec, Rules& rules) {
  const SyncSpec& s = spec.sync;
  const bool cycle = rules.on({"spec.sync.fragments", "spec.sync.interval"});
  if (cycle && s.interval % s.fragments != 0) {
    rules.fail("spec.sync.fragments", s.fragments, "does not divide interval " + number(s.interval),
               divisors(s.interval), "fragments = interval sends one fragment at every step");
  }
  if (rules.on({"spec.sync.interval", "spec.sync.overlap"})) {
    const std::int32_t most = std::max(1, s.interval - 1);
    if (s.overlap > most) {
      rules.fail("spec.sync.overlap", s.overlap, "is not below interval " + number(s.interval),
                 most == 1 ? "1" : "1 to " + number(most));
    }
  }
  if (cycle && rules.on({"spec.sync.overlap", "spec.sync.maxLead"})) {
    const std::int64_t least = s.interval / s.fragments + s.overlap + 1;
    if (s.max_lead < least) {
      rules.fail("spec.sync.maxLead", s.max_lead, "is not more than interval/fragments + overlap",
                 number(least) + " or more",
                 "leave it out for " + number(std::max<std::int64_t>(2 * s.interval, least)));
    }
  }
  if (rules.on({"spec.inner.warmupSteps", "spec.budget"}) &&
      spec.inner.warmup_steps > spec.budget.global_steps) {
    rules.fail("spec.inner.warmupSteps", spec.inner.warmup_steps,
               "is more than budget.globalSteps " + number(spec.budget.global_steps),
               "0 to " + number(spec.budget.global_steps));
  }
}

void check_units(const TrainingSpec& spec, Rules& rules) {
  if (!rules.on({"spec.datacenters"})) return;
  const std::int32_t units = total_units(spec);
  if (spec.datacenters.empty()) {
    return rules.fail("spec.datacenters", "", "is required", "1 to 64 datacenters",
                      "datacenters: [{name: local, learnerUnits: 1}]");
  }
  if (units < 1 || units > 256) {
    const std::string path =
        spec.datacenters.size() == 1 ? "spec.datacenters[0].learnerUnits" : "spec.datacenters";
    return rules.fail(path, units,
                      units < 1 ? "learner units can't train" : "learner units are too many",
                      "1 to 256 in all datacenters together");
  }
  if (rules.on({"spec.sync.quorum"}) && spec.sync.quorum > units) {
    rules.fail("spec.sync.quorum", spec.sync.quorum, "is more than all learner units",
               "1 to " + number(units), "a quorum that can't be met never merges");
  }
  if (rules.on({"spec.sync.startUnits"}) && spec.sync.start_units > units) {
    rules.fail("spec.sync.startUnits", spec.sync.start_units, "is more than all learner units",
               "1 to " + number(units));
  }
}

// Names on their own and the lengths of what is derived from them.
void check_names(const DecoupledTraining& training, Rules& rules) {
  const TrainingSpec& spec = training.spec;
  bool run = rules.on({"metadata.name"});
  const std::string most = "at most " + number(static_cast<std::int64_t>(kMaxNameLength));
  if (run && longest_run_name(training.name) > kMaxNameLength) {
    const std::size_t spare = kMaxNameLength - longest_run_name("");
    rules.fail("metadata.name", show_text(training.name),
               "is too long: names derived from it pass 63 characters",
               "at most " + std::to_string(spare) + " characters");
    run = false;  // the lengths below follow from it
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < spec.datacenters.size(); ++i) {
    const DatacenterSpec& datacenter = spec.datacenters[i];
    const std::string path = "spec.datacenters[" + std::to_string(i) + "].name";
    if (!rules.on({path})) continue;
    if (!seen.insert(datacenter.name).second) {
      rules.fail(path, show_text(datacenter.name), "is the name of two datacenters",
                 "a name of its own");
    } else if (const std::size_t length = longest_pod_name(training.name, datacenter);
               run && length > kMaxNameLength) {
      rules.fail(path, show_text(datacenter.name),
                 "makes pod names of up to " + std::to_string(length) + " characters (" +
                     training.name + "-" + datacenter.name + "-ORDINAL-iINCARNATION)",
                 most, "shorten this name or metadata.name");
    }
  }
  const std::string& home = spec.outer_optimizer.datacenter;
  if (rules.on({"spec.datacenters", "spec.outerOptimizer.datacenter"}) && !home.empty() &&
      seen.count(home) == 0) {
    const std::vector<std::string> names(seen.begin(), seen.end());
    const std::string near = nearest(home, names);
    rules.fail("spec.outerOptimizer.datacenter", show_text(home), "is no datacenter of this run",
               join(names, ", "), near.empty() ? "" : "did you mean " + near + "?");
  }
  std::set<std::string> sets;
  for (std::size_t i = 0; i < spec.data.validation.size(); ++i) {
    const std::string path = "spec.data.validation[" + std::to_string(i) + "].name";
    if (rules.on({path}) && !sets.insert(spec.data.validation[i].name).second) {
      rules.fail(path, show_text(spec.data.validation[i].name),
                 "is the name of two validation sets", "a name of its own");
    }
  }
}

void check_resources(const TrainingSpec& spec, Rules& rules) {
  const StorageSpec& storage = spec.outer_optimizer.storage;
  if (rules.on({"spec.restart.backoffSeconds", "spec.restart.maxBackoffSeconds"}) &&
      spec.restart.backoff_seconds > spec.restart.max_backoff_seconds) {
    rules.fail("spec.restart.maxBackoffSeconds", show_value(spec.restart.max_backoff_seconds),
               "is less than backoffSeconds", "backoffSeconds or more");
  }
  // An existing claim has a size of its own.
  if (!storage.existing_claim.empty()) return;
  if (!rules.on({"spec.model", "spec.sync.interval", "spec.outerOptimizer.storage",
                 "spec.outerOptimizer.checkpoint"})) {
    return;
  }
  const std::int64_t parameters = model_size(spec.model).parameters;
  const StorageNeed need = storage_need(parameters, spec.outer_optimizer.checkpoint, spec.sync);
  if (storage.size_bytes >= need.total) return;
  rules.fail("spec.outerOptimizer.storage.size", show_text(storage.size),
             "is too small for " + number(parameters) + " parameters: checkpoints " +
                 show_bytes(need.checkpoints) + ", journal " + show_bytes(need.journal) +
                 ", model " + show_bytes(need.model),
             show_bytes(need.total) + " or more",
             "checkpoint.keep and checkpoint.everySteps lower it");
}

}  // namespace

void resolve_defaults(TrainingSpec& spec, const Given& given) {
  SyncSpec& sync = spec.sync;
  if (!given.outer_learning_rate && sync.merge == MergeRule::kMean) spec.outer.learning_rate = 0.7;
  if (!given.overlap) sync.overlap = std::min(sync.overlap, std::max(1, sync.interval - 1));
  if (!given.max_lead) {
    const std::int32_t between = (sync.interval + sync.fragments - 1) / sync.fragments;
    sync.max_lead = std::max(2 * sync.interval, between + sync.overlap + 1);
  }
  if (!given.start_units) sync.start_units = total_units(spec);
  if (!given.warmup_steps)
    spec.inner.warmup_steps = std::min(spec.inner.warmup_steps, spec.budget.global_steps);
  if (spec.outer_optimizer.datacenter.empty() && !spec.datacenters.empty()) {
    spec.outer_optimizer.datacenter = spec.datacenters.front().name;
  }
}

void check_rules(const DecoupledTraining& training, ErrorList& errors) {
  Rules rules(errors);
  check_model(training.spec, rules);
  check_units(training.spec, rules);
  check_schedule(training.spec, rules);
  check_fragments(training.spec, rules);
  check_names(training, rules);
  check_resources(training.spec, rules);
}

}  // namespace archipelago::config
