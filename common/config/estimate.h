#pragma once
// What a run needs, from its spec alone. 64-bit throughout; results past 63 bits saturate.
#include <cstdint>
#include <string>

#include "common/config/spec.h"

namespace archipelago::config {

struct ModelSize {
  std::int64_t parameters = 0;  // N
  std::int64_t tensors = 0;
  std::int64_t largest_tensor = 0;  // elements
  std::int64_t embedding = 0;       // elements of embed_tokens (and lm_head where it is not tied)
};
// LlamaForCausalLM: nine tensors a layer, embed_tokens, norm, and lm_head unless tied.
[[nodiscard]] ModelSize model_size(const ModelSpec& model);

// Bytes on the outer optimizer's claim (protocol.md §2.8): checkpoints 12N (keep + 1), the journal
// 4N for each P rounds between checkpoints times 1.5, the exported model 4N. A step without a
// fragment (P < H) journals nothing.
struct StorageNeed {
  std::int64_t checkpoints = 0;
  std::int64_t journal = 0;
  std::int64_t model = 0;
  std::int64_t total = 0;
};
[[nodiscard]] StorageNeed storage_need(std::int64_t parameters, const CheckpointSpec& checkpoint,
                                       const SyncSpec& sync);

// Elements of the largest fragment at most: greedy balancing ends within one tensor of the mean.
[[nodiscard]] std::int64_t largest_fragment_bound(const ModelSize& size, std::int64_t fragments);
// Payload bytes of n elements: int8 and int4 carry one fp32 scale per 256 elements.
[[nodiscard]] std::int64_t encoded_bytes(CodecName codec, std::int64_t elements);

// Bytes of the outer optimizer's process (protocol.md §3): 4.5 x 4N, two buffers of the largest
// fragment, and the encoded uploads of the rounds that can be open at once, from every unit.
struct MemoryNeed {
  std::int64_t state = 0;
  std::int64_t buffers = 0;
  std::int64_t uploads = 0;
  std::int64_t total = 0;
};
[[nodiscard]] MemoryNeed outer_optimizer_memory(const ModelSize& size, const SyncSpec& sync,
                                                std::int64_t units);

[[nodiscard]] std::string show_bytes(std::int64_t bytes);  // "144Gi", rounded up to three digits

}  // namespace archipelago::config
