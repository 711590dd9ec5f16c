#pragma once
// `archipelago-learner sample MODEL --prompt TEXT`: continues a text with a model folder
// (model.safetensors, config.json).
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/trainer.h"

namespace archipelago::learner {

struct SampleRequest {
  std::string folder;
  std::string prompt = "The ";
  std::int64_t tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1;
};

using TrainerFactory = std::function<Result<std::unique_ptr<Trainer>>(const config::ModelSpec&,
                                                                      const config::InnerSpec&)>;

// The continuation, without the prompt. Models of bytes only (vocabulary 256).
[[nodiscard]] Result<std::string> sample_model(const SampleRequest& request,
                                               const TrainerFactory& factory);

}  // namespace archipelago::learner
