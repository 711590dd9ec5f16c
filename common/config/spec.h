#pragma once
// The DecoupledTraining resource (docs/resource.md) as typed values with their defaults. Sizes in
// elements or bytes, times in seconds unless the name says otherwise. Parsing and validation:
// parse.h.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace archipelago::config {

enum class DataFormat { kText, kTokensU16, kTokensU32 };
enum class Precision { kFp32, kBf16 };
enum class GraceRule { kSteps, kSlack, kOff };
enum class MergeRule { kRda, kMean };
enum class CodecName { kFp32, kBf16, kInt8, kInt4 };
enum class AttentionBias { kNone, kQkv, kAll };  // all: the output projection, too
enum class RopeScaling { kNone, kLinear, kLlama3 };
enum class LrSchedule { kCosine, kConstant };
enum class RetainPolicy { kRetain, kDelete };

// Rotary embedding; the numbers are those of Hugging Face's rope_parameters.
struct RopeSpec {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 8;            // linear, llama3: wave lengths times this
  double low_freq_factor = 1;   // llama3: waves longer than original / low: all of it
  double high_freq_factor = 4;  // llama3: waves shorter than original / high: none
  std::int64_t original_context_length = 8192;  // llama3
  bool operator==(const RopeSpec&) const = default;
};

// Llama-family decoder (Llama, Mistral, Qwen2, Qwen3), names as Hugging Face's LlamaForCausalLM.
struct ModelSpec {
  std::int64_t hidden_size = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 4;
  std::int64_t intermediate_size = 688;
  std::int64_t vocab_size = 256;
  std::int64_t context_length = 256;
  bool tie_embeddings = true;
  std::int64_t head_dim = 0;  // 0: hidden_size / heads
  double rms_norm_eps = 1e-5;
  AttentionBias attention_bias = AttentionBias::kNone;
  bool qk_norm = false;  // queries and keys normalised per head, as Qwen3 does
  RopeSpec rope;
  std::uint64_t init_seed = 1;  // initFrom: {seed: N}
  std::string init_path;        // initFrom: {path: FOLDER}; empty: the seed's random weights

  [[nodiscard]] std::int64_t head_size() const {  // elements of a head
    return head_dim > 0 ? head_dim : hidden_size / heads;
  }
  [[nodiscard]] std::int64_t tensors_per_layer() const {
    const std::int64_t biases = attention_bias == AttentionBias::kNone  ? 0
                                : attention_bias == AttentionBias::kQkv ? 3
                                                                        : 4;
    return 9 + biases + (qk_norm ? 2 : 0);
  }
  bool operator==(const ModelSpec&) const = default;
};

struct TrainData {
  std::string path;
  DataFormat format = DataFormat::kText;
  bool operator==(const TrainData&) const = default;
};
struct ValidationData {
  std::string name = "main";
  std::string path;
  std::int64_t every_steps = 100;  // global steps
  std::int64_t sequences = 256;
  bool operator==(const ValidationData&) const = default;
};
struct DataVolume {  // at most one of both
  std::string claim;
  std::string host_path;
  bool operator==(const DataVolume&) const = default;
};
struct DataSpec {
  TrainData train;
  std::vector<ValidationData> validation;
  DataVolume volume;
  bool operator==(const DataSpec&) const = default;
};

struct InnerSpec {
  std::string optimizer = "adamw";
  double learning_rate = 3.0e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;
  std::int64_t warmup_steps = 100;  // global steps; default min(100, budget.globalSteps)
  LrSchedule schedule = LrSchedule::kCosine;
  std::int64_t batch_size = 16;  // sequences per micro-batch
  std::int64_t gradient_accumulation = 1;
  Precision precision = Precision::kFp32;
  std::uint64_t seed = 1;
  bool operator==(const InnerSpec&) const = default;
};

struct OuterSpec {
  double learning_rate = 0.4;  // 0.7 where merge is mean and nothing was given
  double momentum = 0.9;
  bool nesterov = true;
  bool operator==(const OuterSpec&) const = default;
};

struct GraceSpec {
  GraceRule rule = GraceRule::kSteps;
  double steps = 1.5;     // rule steps: window in step times
  double fraction = 0.8;  // rule slack: gamma of the paper
  bool operator==(const GraceSpec&) const = default;
};

struct SyncSpec {
  std::int32_t fragments = 24;  // P
  std::int32_t interval = 24;   // H
  std::int32_t overlap = 2;     // tau
  std::int32_t quorum = 1;      // K
  GraceSpec grace;
  std::string fragmentation = "balanced";  // diloco::FragmentScheme's names
  MergeRule merge = MergeRule::kRda;
  MergeRule embedding_merge = MergeRule::kMean;
  CodecName uplink = CodecName::kInt4;
  CodecName downlink = CodecName::kInt4;
  double blend = 0.0;            // share of its own weights that a learner keeps at an overwrite
  std::int32_t max_lead = 0;     // resolved: max(2H, H/P + overlap + 1)
  std::int32_t start_units = 0;  // resolved: sum of learnerUnits
  double start_timeout_seconds = 300;
  Precision published = Precision::kFp32;
  bool operator==(const SyncSpec&) const = default;
};

struct BudgetSpec {
  std::int64_t global_steps = 2000;  // T
  bool operator==(const BudgetSpec&) const = default;
};

struct StorageSpec {
  std::string size = "10Gi";
  std::int64_t size_bytes = 10LL << 30;  // of size
  std::string storage_class_name;
  std::vector<std::string> access_modes{"ReadWriteOnce"};
  std::string existing_claim;
  bool adopt = false;
  RetainPolicy retain = RetainPolicy::kRetain;
  bool operator==(const StorageSpec&) const = default;
};
struct CheckpointSpec {
  std::int64_t every_steps = 100;
  std::int32_t keep = 3;
  bool journal = true;  // fp32 | "off"
  bool operator==(const CheckpointSpec&) const = default;
};
struct OuterOptimizerSpec {
  std::string datacenter;  // default: the first datacenter
  StorageSpec storage;
  CheckpointSpec checkpoint;
  std::string service_type = "ClusterIP";
  double finished_linger_seconds = 600;
  std::string template_json = "{}";  // passed through to pods
  // From template.resources.limits; 0 = no limit.
  double cpu_limit = 0;
  std::int64_t memory_limit_bytes = 0;
  bool operator==(const OuterOptimizerSpec&) const = default;
};

struct InnerOverride {
  std::optional<std::int64_t> batch_size;
  std::optional<std::int64_t> gradient_accumulation;
  bool operator==(const InnerOverride&) const = default;
};
struct DatacenterSpec {
  std::string name;
  std::int32_t learner_units = 1;
  InnerOverride inner;
  DataVolume volume;
  std::string learner_image;  // empty: the run's
  std::vector<std::string> pull_secrets;
  std::string template_json = "{}";
  // From template.resources.limits, for the process kubelet and learner threads; 0 = no limit.
  double cpu_limit = 0;
  std::int64_t memory_limit_bytes = 0;
  bool operator==(const DatacenterSpec&) const = default;
};

struct RestartSpec {
  std::int32_t backoff_limit = 10;
  double backoff_seconds = 5;
  double max_backoff_seconds = 300;
  double reset_seconds = 1800;
  double node_lost_seconds = 60;
  double stall_seconds = 300;
  bool operator==(const RestartSpec&) const = default;
};
struct RecoverySpec {
  double timeout_seconds = 0;  // 0: max(60, interval x step time)
  Precision precision = Precision::kBf16;
  bool operator==(const RecoverySpec&) const = default;
};
struct ImagesSpec {
  std::string learner;
  std::string outer_optimizer;
  std::string pull_policy = "IfNotPresent";
  std::vector<std::string> pull_secrets;
  bool operator==(const ImagesSpec&) const = default;
};

struct TrainingSpec {
  bool suspend = false;
  ImagesSpec images;
  ModelSpec model;
  DataSpec data;
  InnerSpec inner;
  OuterSpec outer;
  SyncSpec sync;
  BudgetSpec budget;
  OuterOptimizerSpec outer_optimizer;
  std::vector<DatacenterSpec> datacenters;
  RestartSpec restart;
  RecoverySpec recovery;
  std::optional<std::int64_t> ttl_seconds_after_finished;
  std::optional<std::int64_t> active_deadline_seconds;
  bool operator==(const TrainingSpec&) const = default;
};

struct DecoupledTraining {
  std::string name;
  std::string name_space = "default";
  std::string uid;  // empty until an API server or MemoryCluster gave one
  std::int64_t generation = 1;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  TrainingSpec spec;  // every default resolved
  bool operator==(const DecoupledTraining&) const = default;
};

[[nodiscard]] std::int32_t total_units(const TrainingSpec& spec);
// The unit's name: "<datacenter>-<ordinal>".
[[nodiscard]] std::string unit_name(const std::string& datacenter, std::int32_t ordinal);

}  // namespace archipelago::config
