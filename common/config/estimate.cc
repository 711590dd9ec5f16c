#include "common/config/estimate.h"

#include <algorithm>
#include <array>
#include <limits>

namespace archipelago::config {
namespace {

std::int64_t mul(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

ModelSize model_size(const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t kv = mul(model.head_size(), model.kv_heads);
  const std::int64_t q = mul(model.head_size(), model.heads);
  const std::int64_t square = mul(hidden, q);
  const std::int64_t projection = mul(hidden, kv);
  const std::int64_t mlp = mul(hidden, model.intermediate_size);
  const std::int64_t embedding = mul(hidden, model.vocab_size);
  // q and o; k and v; gate, up and down; two norms; biases; norms of a query's and a key's head.
  std::int64_t layer =
      add(add(mul(2, square), mul(2, projection)), add(mul(3, mlp), mul(2, hidden)));
  if (model.attention_bias != AttentionBias::kNone) layer = add(layer, add(q, mul(2, kv)));
  if (model.attention_bias == AttentionBias::kAll) layer = add(layer, hidden);
  if (model.qk_norm) layer = add(layer, mul(2, model.head_size()));
  ModelSize size;
  size.embedding = mul(model.tie_embeddings ? 1 : 2, embedding);
  size.parameters = add(add(mul(model.layers, layer), size.embedding), hidden);
  size.tensors = model.tensors_per_layer() * model.layers + (model.tie_embeddings ? 2 : 3);
  size.largest_tensor = std::max({square, mlp, embedding});
  return size;
}

StorageNeed storage_need(std::int64_t parameters, const CheckpointSpec& checkpoint,
                         const SyncSpec& sync) {
  StorageNeed need;
  need.checkpoints = mul(mul(12, parameters), std::int64_t{checkpoint.keep} + 1);
  if (checkpoint.journal) {
    // 4N·everySteps/P·1.5 where every step has a fragment (P = H); P rounds take H steps, so P/H of
    // the steps have one: 4N·everySteps/H·1.5. At least one whole cycle: fragments are not equal.
    const std::int64_t interval = std::max(1, sync.interval);
    const std::int64_t steps = std::max<std::int64_t>(checkpoint.every_steps, interval);
    need.journal = add(mul(mul(6, parameters), steps / interval),
                       mul(6, parameters) / interval * (steps % interval));
  }
  need.model = mul(4, parameters);
  need.total = add(add(need.checkpoints, need.journal), need.model);
  return need;
}

std::int64_t largest_fragment_bound(const ModelSize& size, std::int64_t fragments) {
  if (fragments <= 1) return size.parameters;
  return std::min(size.parameters, add(size.parameters / fragments, size.largest_tensor));
}

std::int64_t encoded_bytes(CodecName codec, std::int64_t elements) {
  const std::int64_t scales = mul(4, ceil_div(elements, 256));
  switch (codec) {
    case CodecName::kFp32:
      return mul(4, elements);
    case CodecName::kBf16:
      return mul(2, elements);
    case CodecName::kInt8:
      return add(elements, scales);
    case CodecName::kInt4:
      return add(ceil_div(elements, 2), scales);
  }
  return mul(4, elements);
}

MemoryNeed outer_optimizer_memory(const ModelSize& size, const SyncSpec& sync, std::int64_t units) {
  const std::int64_t fragment = largest_fragment_bound(size, sync.fragments);
  const std::int64_t mean = ceil_div(size.parameters, std::max(1, sync.fragments));
  const std::int64_t open_rounds = std::max(1, sync.overlap);
  MemoryNeed need;
  need.state = mul(18, size.parameters);
  need.buffers = mul(8, fragment);
  // Of the rounds open at once one may hold the largest fragment, the others ordinary ones.
  const std::int64_t round = encoded_bytes(sync.uplink, fragment);
  const std::int64_t others = mul(open_rounds - 1, encoded_bytes(sync.uplink, mean));
  need.uploads = mul(units, add(round, others));
  need.total = add(need.state, add(need.buffers, need.uploads));
  return need;
}

std::string show_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 7> kUnits{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes = ceil_div(bytes, 1024);
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

}  // namespace archipelago::config
