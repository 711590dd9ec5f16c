// What a run needs, at sizes where 32 bits are not enough.
#include "common/config/estimate.h"

#include <limits>

#include <catch2/catch.hpp>

#include "good_spec.h"

namespace archipelago::config {
namespace {

// Llama 3.2 3B: its published parameter count is 3,212,749,824.
ModelSpec three_billion() {
  ModelSpec model;
  model.hidden_size = 3072;
  model.layers = 28;
  model.heads = 24;
  model.kv_heads = 8;
  model.intermediate_size = 8192;
  model.vocab_size = 128256;
  model.context_length = 8192;
  model.tie_embeddings = true;
  return model;
}

TEST_CASE("parameters are counted as the published models do") {
  const ModelSize size = model_size(three_billion());
  CHECK(size.parameters == 3'212'749'824);
  CHECK(size.tensors == 28 * 9 + 2);
  CHECK(size.largest_tensor == std::int64_t{3072} * 128256);
  ModelSpec untied = three_billion();
  untied.tie_embeddings = false;
  CHECK(model_size(untied).parameters == 3'212'749'824 + std::int64_t{3072} * 128256);
  CHECK(model_size(untied).tensors == size.tensors + 1);
}

// Published counts: Qwen2.5 0.5B 494,032,768; Qwen3 0.6B 596,049,920 (tied).
TEST_CASE("parameters of models with biases and head norms") {
  ModelSpec qwen2;
  qwen2.hidden_size = 896;
  qwen2.layers = 24;
  qwen2.heads = 14;
  qwen2.kv_heads = 2;
  qwen2.intermediate_size = 4864;
  qwen2.vocab_size = 151936;
  qwen2.attention_bias = AttentionBias::kQkv;
  CHECK(model_size(qwen2).parameters == 494'032'768);
  CHECK(model_size(qwen2).tensors == 24 * 12 + 2);
  ModelSpec qwen3;
  qwen3.hidden_size = 1024;
  qwen3.layers = 28;
  qwen3.heads = 16;
  qwen3.kv_heads = 8;
  qwen3.head_dim = 128;
  qwen3.intermediate_size = 3072;
  qwen3.vocab_size = 151936;
  qwen3.qk_norm = true;
  CHECK(model_size(qwen3).parameters == 596'049'920);
  CHECK(model_size(qwen3).tensors == 28 * 11 + 2);
}

TEST_CASE("storage: 12N (keep + 1), 4N everySteps / P x 1.5, the model") {
  const std::int64_t n = 3'212'749'824;
  const StorageNeed need = storage_need(n, CheckpointSpec{}, SyncSpec{});
  CHECK(need.checkpoints == 12 * n * 4);
  CHECK(need.journal == 25 * n);  // 4N * 100 / 24 * 1.5
  CHECK(need.model == 4 * n);
  CHECK(need.total == need.checkpoints + need.journal + need.model);

  CheckpointSpec no_journal;
  no_journal.journal = false;
  CHECK(storage_need(n, no_journal, SyncSpec{}).journal == 0);
  SyncSpec diloco;  // one fragment every hundred steps: one round between checkpoints
  diloco.fragments = 1;
  diloco.interval = 100;
  CHECK(storage_need(n, CheckpointSpec{}, diloco).journal == 6 * n);
}

TEST_CASE("memory of the outer optimizer") {
  const ModelSize size = model_size(three_billion());
  const MemoryNeed need = outer_optimizer_memory(size, SyncSpec{}, 256);
  CHECK(need.state == 18 * size.parameters);
  CHECK(need.buffers == 8 * largest_fragment_bound(size, 24));
  CHECK(need.uploads > 0);
  CHECK(need.total == need.state + need.buffers + need.uploads);
  CHECK(largest_fragment_bound(size, 1) == size.parameters);
  CHECK(largest_fragment_bound(size, 24) >= size.largest_tensor);
}

TEST_CASE("encoded sizes") {
  CHECK(encoded_bytes(CodecName::kFp32, 3'000'000'001) == 12'000'000'004);
  CHECK(encoded_bytes(CodecName::kBf16, 3) == 6);
  CHECK(encoded_bytes(CodecName::kInt8, 257) == 257 + 8);
  CHECK(encoded_bytes(CodecName::kInt4, 257) == 129 + 8);
}

TEST_CASE("figures saturate instead of wrapping") {
  ModelSpec huge;
  huge.hidden_size = 65536;
  huge.layers = 1024;
  huge.heads = 1024;
  huge.kv_heads = 1024;
  huge.intermediate_size = 1 << 20;
  huge.vocab_size = 1 << 24;
  const ModelSize size = model_size(huge);
  CHECK(size.parameters > 200'000'000'000'000);
  CheckpointSpec checkpoint;
  checkpoint.every_steps = 1'000'000;
  checkpoint.keep = 100;
  SyncSpec sync;
  sync.fragments = sync.interval = 1;
  CHECK(storage_need(size.parameters, checkpoint, sync).total ==
        std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("sizes are shown in binary units, rounded up") {
  CHECK(show_bytes(0) == "0");
  CHECK(show_bytes(999) == "999");
  CHECK(show_bytes(std::int64_t{10} << 30) == "10Gi");
  CHECK(show_bytes((std::int64_t{10} << 30) + 1) == "11Gi");
}

TEST_CASE("a claim too small for the model is refused with the figure") {
  const std::vector<std::string> sets{
      "model={hiddenSize: 3072, layers: 28, heads: 24, kvHeads: 8, intermediateSize: 8192, "
      "vocabSize: 128256, "
      "contextLength: 8192}",
      "data.train.format=tokens-u32"};
  const auto errors = errors_of(sets);
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].path == "spec.outerOptimizer.storage.size");
  CHECK_THAT(format_error(errors[0]),
             Catch::Contains("3212749824 parameters") && Catch::Contains("231Gi or more"));
  std::vector<std::string> enough = sets;
  enough.emplace_back("outerOptimizer.storage.size=231Gi");
  CHECK(errors_of(enough).empty());
  std::vector<std::string> existing = sets;
  existing.emplace_back("outerOptimizer.storage.existingClaim=old");
  CHECK(errors_of(existing).empty());
}

}  // namespace
}  // namespace archipelago::config
