#include "learner/sample.h"

#include <filesystem>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {

Result<std::string> sample_model(const SampleRequest& request, const TrainerFactory& factory) {
  const std::filesystem::path folder = request.folder;
  std::string text;
  ARCH_TRY(text, read_file(folder / "config.json"));
  config::ModelSpec model;
  ARCH_TRY(model, parse_hf_config(text));
  if (model.vocab_size != 256)
    return fail(ErrorKind::kUnsupported, "the model has a vocabulary of " +
                                             std::to_string(model.vocab_size) +
                                             ", only models of bytes (256) can be sampled");
  wire::SafetensorsFile file;
  ARCH_TRY(file, wire::SafetensorsFile::open(folder / "model.safetensors"));
  std::unique_ptr<Trainer> trainer;
  ARCH_TRY(trainer, factory(model, config::InnerSpec{}));
  for (std::size_t i = 0; i < trainer->tensors().size(); ++i) {
    const TensorShape& tensor = trainer->tensors()[i];
    const wire::SafeTensor* stored = file.find(tensor.name);
    if (stored == nullptr)
      return fail(ErrorKind::kInvalid, "model.safetensors lacks " + tensor.name);
    if (stored->shape != tensor.shape)
      return fail(ErrorKind::kInvalid,
                  "model.safetensors: " + tensor.name + " has another shape than config.json says");
    std::vector<float> values(static_cast<std::size_t>(tensor.elements));
    ARCH_TRY_VOID(file.read(*stored, values));
    const auto index = static_cast<std::int32_t>(i);
    trainer->write(std::span(&index, 1), values);
  }
  std::vector<std::int32_t> prompt;
  for (const char c : request.prompt) prompt.push_back(static_cast<unsigned char>(c));
  std::vector<std::int32_t> tokens;
  ARCH_TRY(tokens, trainer->sample(prompt, request.tokens, request.temperature, request.seed));
  std::string out;
  for (const std::int32_t token : tokens) out.push_back(static_cast<char>(token));
  return out;
}

}  // namespace archipelago::learner
