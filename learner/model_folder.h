#pragma once
// A model in Hugging Face's form on disk: config.json, and model.safetensors or
// model.safetensors.index.json with its shards. Weights in fp32, bf16 or fp16 come out as fp32.
#include <cstdint>
#include <filesystem>
#include <string>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/trainer.h"

namespace archipelago::learner {

// config.json of the folder. kNotFound: there is none.
[[nodiscard]] Result<config::ModelSpec> read_model_config(const std::filesystem::path& folder);

// Every tensor of the trainer, by name, from the folder's files. Refused, naming the tensor: one
// that is missing, has another shape, holds a value that is not finite, or is there and not in the
// model (but for lm_head where the embeddings are tied, and rotary tables of old files). Parameters
// are partly written when it fails.
[[nodiscard]] Status load_weights(const std::filesystem::path& folder, Trainer& trainer);

// Version 0 of a run (spec.model.initFrom): the weights of `path`, or random ones of `seed` where
// that is empty.
[[nodiscard]] Status first_weights(const std::string& path, std::uint64_t seed, Trainer& trainer);

}  // namespace archipelago::learner
