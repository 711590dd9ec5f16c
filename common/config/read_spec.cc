#include "common/config/read_spec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/config/enums.h"
#include "common/config/names.h"

namespace archipelago::config {
namespace {

constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr std::int64_t kMaxSeed = std::numeric_limits<std::int64_t>::max();

void read_init_from(ObjectReader init, ModelSpec& out) {
  const bool seeded = init.integer("seed", out.init_seed, 0, kMaxSeed);
  if (init.text("path", out.init_path, check_path) && seeded)
    init.error("path", "is given together with seed", "one of seed and path");
  init.refuse("run", "seed, path");
  init.refuse("step", "seed, path");
  init.finish();
}

void read_rope(ObjectReader rope, RopeSpec& out) {
  rope.number("theta", out.theta, {1, 1e9, true});
  rope.choice("scaling", out.scaling, kRopeScalings);
  rope.number("factor", out.factor, {1, 1e6});
  rope.number("lowFreqFactor", out.low_freq_factor, {0, 1e6, true});
  rope.number("highFreqFactor", out.high_freq_factor, {0, 1e6, true});
  rope.integer("originalContextLength", out.original_context_length, 1, 1 << 24);
  rope.finish();
}

void read_model(ObjectReader model, ModelSpec& out) {
  model.integer("hiddenSize", out.hidden_size, 8, 65536);
  model.integer("layers", out.layers, 1, 1024);
  model.integer("heads", out.heads, 1, 1024);
  model.integer("kvHeads", out.kv_heads, 1, 1024);
  model.integer("intermediateSize", out.intermediate_size, 8, 1 << 20);
  model.integer("vocabSize", out.vocab_size, 2, 1 << 24);
  model.integer("contextLength", out.context_length, 2, 1 << 20);
  model.boolean("tieEmbeddings", out.tie_embeddings);
  model.integer("headDim", out.head_dim, 0, 65536);
  model.number("rmsNormEps", out.rms_norm_eps, {0, 0.1, true});
  model.choice("attentionBias", out.attention_bias, kAttentionBiases);
  model.boolean("qkNorm", out.qk_norm);
  read_rope(model.object("rope"), out.rope);
  read_init_from(model.object("initFrom"), out);
  model.finish();
}

void read_train(ObjectReader train, TrainData& out) {
  if (!train.text("path", out.path, check_path) && !train.has("path")) {
    train.error("path", "is required", "the path of the training file");
  }
  train.choice("format", out.format, kDataFormats);
  Word tokenizer;
  train.choice("tokenizer", tokenizer, kTokenizers);
  train.finish();
}

void read_data(ObjectReader data, DataSpec& out) {
  read_train(data.object("train"), out.train);
  data.list("validation", 64, [&](ObjectReader& item, std::size_t /*index*/) {
    ValidationData set;
    item.text("name", set.name, check_label);
    if (!item.text("path", set.path, check_path) && !item.has("path")) {
      item.error("path", "is required", "the path of the validation file");
    }
    item.integer("everySteps", set.every_steps, 1, kMaxSteps);
    item.integer("sequences", set.sequences, 1, 1'000'000);
    item.finish();
    out.validation.push_back(std::move(set));
  });
  if (out.validation.size() > 1)  // several sets are not evaluated yet
    data.error("validation", "is not supported yet", "a list of 1");
  read_volume(data.object("volume"), out.volume);
  data.finish();
}

void read_betas(ObjectReader& inner, InnerSpec& out) {
  const nlohmann::json* betas = inner.raw("betas");
  if (betas == nullptr) return;
  constexpr const char* kAllowed = "two numbers, each at least 0 and less than 1";
  const auto good = [](const nlohmann::json& beta) {
    return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;  // false for NaN
  };
  if (!betas->is_array() || betas->size() != 2)
    return inner.error("betas", "is not allowed", kAllowed);
  for (std::size_t i = 0; i < 2; ++i) {
    if (good((*betas)[i])) continue;
    return inner.error("betas", "with " + show_value((*betas)[i]) + " is not allowed", kAllowed);
  }
  out.beta1 = (*betas)[0].get<double>();
  out.beta2 = (*betas)[1].get<double>();
}

void read_inner(ObjectReader inner, InnerSpec& out, Given& given) {
  Word optimizer = out.optimizer;
  if (inner.choice("optimizer", optimizer, kOptimizers)) out.optimizer = std::string(optimizer);
  inner.number("learningRate", out.learning_rate, {0, 10, true});
  read_betas(inner, out);
  inner.number("weightDecay", out.weight_decay, {0, 10});
  inner.number("gradientClip", out.gradient_clip, {0, 1e6, true});
  given.warmup_steps = inner.integer("warmupSteps", out.warmup_steps, 0, kMaxSteps);
  inner.choice("schedule", out.schedule, kSchedules);
  inner.integer("batchSize", out.batch_size, 1, 65536);
  inner.integer("gradientAccumulation", out.gradient_accumulation, 1, 65536);
  inner.choice("precision", out.precision, kPrecisions);
  inner.integer("seed", out.seed, 0, kMaxSeed);
  inner.finish();
}

void read_outer(ObjectReader outer, OuterSpec& out, Given& given) {
  given.outer_learning_rate = outer.number("learningRate", out.learning_rate, {0, 10, true});
  outer.number("momentum", out.momentum, {0, 1, false, true});
  outer.boolean("nesterov", out.nesterov);
  outer.finish();
}

void read_grace(ObjectReader grace, GraceSpec& out) {
  grace.choice("rule", out.rule, kGraceRules);
  grace.number("steps", out.steps, {0, 1000, true});
  grace.number("fraction", out.fraction, {0, 1, true});
  grace.finish();
}

void read_sync(ObjectReader sync, SyncSpec& out, Given& given) {
  sync.integer("fragments", out.fragments, 1, 4096);
  sync.integer("interval", out.interval, 1, 1'000'000);
  given.overlap = sync.integer("overlap", out.overlap, 1, 999'999);
  sync.integer("quorum", out.quorum, 1, 256);
  read_grace(sync.object("grace"), out.grace);
  Word fragmentation = out.fragmentation;
  if (sync.choice("fragmentation", fragmentation, kFragmentations))
    out.fragmentation = std::string(fragmentation);
  sync.choice("merge", out.merge, kMergeRules);
  sync.choice("embeddingMerge", out.embedding_merge, kEmbeddingMergeRules);
  sync.choice("uplink", out.uplink, kCodecs);
  sync.choice("downlink", out.downlink, kCodecs);
  sync.number("blend", out.blend, {0, 1, false, true});
  given.max_lead = sync.integer("maxLead", out.max_lead, 1, 10'000'000);
  given.start_units = sync.integer("startUnits", out.start_units, 1, 256);
  sync.number("startTimeoutSeconds", out.start_timeout_seconds, {1, 604800});
  sync.only("waitTimeoutSeconds", 3600);
  sync.choice("published", out.published, kPrecisions);
  sync.finish();
}

void read_budget(ObjectReader budget, BudgetSpec& out) {
  budget.integer("globalSteps", out.global_steps, 1, kMaxSteps);
  budget.refuse("tokens", "globalSteps");
  budget.finish();
}

void read_recovery(ObjectReader recovery, RecoverySpec& out) {
  recovery.number("timeoutSeconds", out.timeout_seconds, {0, 86400});
  recovery.choice("precision", out.precision, kPrecisions);
  recovery.finish();
}

void read_security(ObjectReader security) {
  Word tls;
  security.choice("tls", tls, kTls);
  security.only("mutual", false);
  security.finish();
}

// null and absent are the same: never.
void read_nullable(ObjectReader& spec, std::string_view key, std::optional<std::int64_t>& out,
                   std::int64_t min) {
  const nlohmann::json* value = spec.raw(key);
  if (value == nullptr || value->is_null()) return;
  std::int64_t number = 0;
  if (spec.integer(key, number, min, std::numeric_limits<std::int32_t>::max())) out = number;
}

}  // namespace

void read_metadata(ObjectReader metadata, DecoupledTraining& training) {
  if (!metadata.text("name", training.name, check_run_name) && !metadata.has("name")) {
    metadata.error("name", "is required", "the run's name");
  }
  metadata.text("namespace", training.name_space, check_label);
  metadata.text("uid", training.uid, check_uid);
  metadata.integer("generation", training.generation, 0, std::numeric_limits<std::int64_t>::max());
  metadata.text_map("labels", training.labels, 256, 63);
  metadata.text_map("annotations", training.annotations, 256, 256 << 10);
  // What an API server adds, and clients send back.
  for (const std::string_view key :
       {"resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
        "ownerReferences", "finalizers", "managedFields", "selfLink", "generateName"}) {
    metadata.tolerate(key);
  }
  metadata.finish();
}

void read_training_spec(ObjectReader spec, TrainingSpec& out, Given& given) {
  spec.boolean("suspend", out.suspend);
  read_images(spec.object("images"), out.images);
  read_model(spec.object("model"), out.model);
  read_data(spec.object("data"), out.data);
  read_inner(spec.object("inner"), out.inner, given);
  read_outer(spec.object("outer"), out.outer, given);
  read_sync(spec.object("sync"), out.sync, given);
  read_budget(spec.object("budget"), out.budget);
  read_outer_optimizer(spec.object("outerOptimizer"), out.outer_optimizer);
  read_datacenters(spec, out.datacenters);
  read_restart(spec.object("restart"), out.restart);
  read_recovery(spec.object("recovery"), out.recovery);
  read_security(spec.object("security"));
  read_nullable(spec, "ttlSecondsAfterFinished", out.ttl_seconds_after_finished, 0);
  read_nullable(spec, "activeDeadlineSeconds", out.active_deadline_seconds, 1);
  spec.finish();
}

}  // namespace archipelago::config
