// to_json: the fully resolved resource, every field that has behaviour.
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/config/enums.h"
#include "common/config/parse.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

template <class E, std::size_t N>
std::string_view name_of(E value, const std::array<Named<E>, N>& names) {
  for (const Named<E>& named : names) {
    if (named.value == value) return named.name;
  }
  return "?";
}

Json template_of(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_object() ? value : Json::object();
}

Json volume(const DataVolume& in) {
  Json out = Json::object();
  if (!in.claim.empty()) out["claim"] = in.claim;
  if (!in.host_path.empty()) out["hostPath"] = in.host_path;
  return out;
}

Json images(const ImagesSpec& in) {
  Json out{{"pullPolicy", in.pull_policy}, {"pullSecrets", in.pull_secrets}};
  if (!in.learner.empty()) out["learner"] = in.learner;
  if (!in.outer_optimizer.empty()) out["outerOptimizer"] = in.outer_optimizer;
  return out;
}

Json rope(const RopeSpec& in) {
  return {{"theta", in.theta},
          {"scaling", to_string(in.scaling)},
          {"factor", in.factor},
          {"lowFreqFactor", in.low_freq_factor},
          {"highFreqFactor", in.high_freq_factor},
          {"originalContextLength", in.original_context_length}};
}

Json init_from(const ModelSpec& in) {
  if (!in.init_path.empty()) return {{"path", in.init_path}};
  return {{"seed", in.init_seed}};
}

Json model(const ModelSpec& in) {
  return {{"hiddenSize", in.hidden_size},
          {"layers", in.layers},
          {"heads", in.heads},
          {"kvHeads", in.kv_heads},
          {"intermediateSize", in.intermediate_size},
          {"vocabSize", in.vocab_size},
          {"contextLength", in.context_length},
          {"tieEmbeddings", in.tie_embeddings},
          {"headDim", in.head_dim},
          {"rmsNormEps", in.rms_norm_eps},
          {"attentionBias", to_string(in.attention_bias)},
          {"qkNorm", in.qk_norm},
          {"rope", rope(in.rope)},
          {"initFrom", init_from(in)}};
}

Json data(const DataSpec& in) {
  Json validation = Json::array();
  for (const ValidationData& set : in.validation) {
    validation.push_back({{"name", set.name},
                          {"path", set.path},
                          {"everySteps", set.every_steps},
                          {"sequences", set.sequences}});
  }
  return {
      {"train",
       {{"path", in.train.path}, {"format", to_string(in.train.format)}, {"tokenizer", "bytes"}}},
      {"validation", std::move(validation)},
      {"volume", volume(in.volume)}};
}

Json inner(const InnerSpec& in) {
  return {{"optimizer", in.optimizer},
          {"learningRate", in.learning_rate},
          {"betas", {in.beta1, in.beta2}},
          {"weightDecay", in.weight_decay},
          {"gradientClip", in.gradient_clip},
          {"warmupSteps", in.warmup_steps},
          {"schedule", to_string(in.schedule)},
          {"batchSize", in.batch_size},
          {"gradientAccumulation", in.gradient_accumulation},
          {"precision", to_string(in.precision)},
          {"seed", in.seed}};
}

Json sync(const SyncSpec& in) {
  return {{"fragments", in.fragments},
          {"interval", in.interval},
          {"overlap", in.overlap},
          {"quorum", in.quorum},
          {"grace",
           {{"rule", to_string(in.grace.rule)},
            {"steps", in.grace.steps},
            {"fraction", in.grace.fraction}}},
          {"fragmentation", in.fragmentation},
          {"merge", to_string(in.merge)},
          {"embeddingMerge", to_string(in.embedding_merge)},
          {"uplink", to_string(in.uplink)},
          {"downlink", to_string(in.downlink)},
          {"blend", in.blend},
          {"maxLead", in.max_lead},
          {"startUnits", in.start_units},
          {"startTimeoutSeconds", in.start_timeout_seconds},
          {"published", to_string(in.published)}};
}

Json outer_optimizer(const OuterOptimizerSpec& in) {
  return {{"datacenter", in.datacenter},
          {"shards", "single"},
          {"storage",
           {{"size", in.storage.size},
            {"storageClassName", in.storage.storage_class_name},
            {"accessModes", in.storage.access_modes},
            {"existingClaim", in.storage.existing_claim},
            {"adopt", in.storage.adopt},
            {"retain", to_string(in.storage.retain)}}},
          {"checkpoint",
           {{"everySteps", in.checkpoint.every_steps},
            {"keep", in.checkpoint.keep},
            {"journal", name_of(in.checkpoint.journal, kJournals)}}},
          {"service", {{"type", in.service_type}}},
          {"finishedLingerSeconds", in.finished_linger_seconds},
          {"template", template_of(in.template_json)}};
}

Json datacenter(const DatacenterSpec& in) {
  Json overrides = Json::object();
  if (in.inner.batch_size) overrides["batchSize"] = *in.inner.batch_size;
  if (in.inner.gradient_accumulation)
    overrides["gradientAccumulation"] = *in.inner.gradient_accumulation;
  Json image{{"pullSecrets", in.pull_secrets}};
  if (!in.learner_image.empty()) image["learner"] = in.learner_image;
  return {{"name", in.name},
          {"learnerUnits", in.learner_units},
          {"workersPerUnit", 1},
          {"images", std::move(image)},
          {"data", {{"volume", volume(in.volume)}}},
          {"inner", std::move(overrides)},
          {"template", template_of(in.template_json)}};
}

Json restart(const RestartSpec& in) {
  return {{"backoffLimit", in.backoff_limit},
          {"backoffSeconds", in.backoff_seconds},
          {"maxBackoffSeconds", in.max_backoff_seconds},
          {"resetSeconds", in.reset_seconds},
          {"nodeLostSeconds", in.node_lost_seconds},
          {"stallSeconds", in.stall_seconds}};
}

Json metadata(const DecoupledTraining& in) {
  Json out{{"name", in.name}, {"namespace", in.name_space}, {"generation", in.generation}};
  if (!in.uid.empty()) out["uid"] = in.uid;
  if (!in.labels.empty()) out["labels"] = in.labels;
  if (!in.annotations.empty()) out["annotations"] = in.annotations;
  return out;
}

}  // namespace

std::string_view to_string(DataFormat value) { return name_of(value, kDataFormats); }
std::string_view to_string(Precision value) { return name_of(value, kPrecisions); }
std::string_view to_string(GraceRule value) { return name_of(value, kGraceRules); }
std::string_view to_string(MergeRule value) { return name_of(value, kMergeRules); }
std::string_view to_string(CodecName value) { return name_of(value, kCodecs); }
std::string_view to_string(AttentionBias value) { return name_of(value, kAttentionBiases); }
std::string_view to_string(RopeScaling value) { return name_of(value, kRopeScalings); }
std::string_view to_string(LrSchedule value) { return name_of(value, kSchedules); }
std::string_view to_string(RetainPolicy value) { return name_of(value, kRetainPolicies); }

Json to_json(const DecoupledTraining& training) {
  const TrainingSpec& in = training.spec;
  Json datacenters = Json::array();
  for (const DatacenterSpec& item : in.datacenters) datacenters.push_back(datacenter(item));
  Json spec{{"suspend", in.suspend},
            {"images", images(in.images)},
            {"model", model(in.model)},
            {"data", data(in.data)},
            {"inner", inner(in.inner)},
            {"outer",
             {{"learningRate", in.outer.learning_rate},
              {"momentum", in.outer.momentum},
              {"nesterov", in.outer.nesterov}}},
            {"sync", sync(in.sync)},
            {"budget", {{"globalSteps", in.budget.global_steps}}},
            {"outerOptimizer", outer_optimizer(in.outer_optimizer)},
            {"datacenters", std::move(datacenters)},
            {"restart", restart(in.restart)},
            {"recovery",
             {{"timeoutSeconds", in.recovery.timeout_seconds},
              {"precision", to_string(in.recovery.precision)}}},
            {"security", {{"tls", "off"}, {"mutual", false}}}};
  if (in.ttl_seconds_after_finished)
    spec["ttlSecondsAfterFinished"] = *in.ttl_seconds_after_finished;
  if (in.active_deadline_seconds) spec["activeDeadlineSeconds"] = *in.active_deadline_seconds;
  return {{"apiVersion", kApiVersion},
          {"kind", kKind},
          {"metadata", metadata(training)},
          {"spec", std::move(spec)}};
}

}  // namespace archipelago::config
