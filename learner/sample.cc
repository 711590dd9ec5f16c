#include "learner/sample.h"

#include <filesystem>

#include "learner/model_folder.h"

namespace archipelago::learner {

Result<std::string> sample_model(const SampleRequest& request, const TrainerFactory& factory) {
  const std::filesystem::path folder = request.folder;
  ARCH_TRY(const config::ModelSpec model, read_model_config(folder));
  if (model.vocab_size != 256)
    return fail(ErrorKind::kUnsupported, "the model has a vocabulary of " +
                                             std::to_string(model.vocab_size) +
                                             ", only models of bytes (256) can be sampled");
  std::unique_ptr<Trainer> trainer;
  ARCH_TRY(trainer, factory(model, config::InnerSpec{}));
  ARCH_TRY_VOID(load_weights(folder, *trainer));
  std::vector<std::int32_t> prompt;
  for (const char c : request.prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::vector<std::int32_t> tokens;
  ARCH_TRY(tokens, trainer->sample(prompt, request.tokens, request.temperature, request.seed));
  std::string out;
  for (const std::int32_t token : tokens) out.push_back(static_cast<char>(token));
  return out;
}

}  // namespace archipelago::learner
