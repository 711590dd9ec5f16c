#include "learner/model_folder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "learner/hf_config.h"

namespace archipelago::learner {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Which file has which tensor, each file opened once.
struct Weights {
  std::vector<wire::SafetensorsFile> files;
  std::vector<std::string> file_names;
  std::map<std::string, std::size_t> where;
};

Status add_file(const std::filesystem::path& folder, const std::string& name, Weights* weights) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
    return fail(ErrorKind::kInvalid,
                std::string(kIndex) + ": " + name + " is not the name of a file of its folder");
  auto file = wire::SafetensorsFile::open(folder / name);
  if (!file) return tl::unexpected(file.error());
  weights->files.push_back(std::move(*file));
  weights->file_names.push_back(name);
  return {};
}

Result<Weights> open_shards(const std::filesystem::path& folder) {
  std::string text;
  ARCH_TRY(text, read_file(folder / kIndex));
  const auto index = nlohmann::json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return fail(ErrorKind::kInvalid, std::string(kIndex) + " has no object weight_map");
  Weights weights;
  std::map<std::string, std::size_t> numbers;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string())
      return fail(ErrorKind::kInvalid, std::string(kIndex) + ": " + tensor + " has no file");
    const auto [it, added] = numbers.emplace(file.get<std::string>(), weights.files.size());
    if (added) ARCH_TRY_VOID(add_file(folder, it->first, &weights));
    if (weights.files[it->second].find(tensor) == nullptr)
      return fail(ErrorKind::kInvalid,
                  it->first + " lacks " + tensor + ", which " + kIndex + " says it has");
    weights.where[tensor] = it->second;
  }
  return weights;
}

Result<Weights> open_weights(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return fail(ErrorKind::kNotFound, folder.string() + " is not a folder");
  if (std::filesystem::exists(folder / kIndex, ignored)) return open_shards(folder);
  Weights weights;
  ARCH_TRY_VOID(add_file(folder, kSingle, &weights));
  for (const auto& tensor : weights.files[0].tensors()) weights.where[tensor.name] = 0;
  return weights;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out;
  for (const std::int64_t dim : shape) out += (out.empty() ? "[" : ", ") + std::to_string(dim);
  return out.empty() ? "[]" : out + "]";
}

// Tables and copies that are no parameters of their own.
bool may_be_left(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
}

Status load_tensor(const Weights& weights, const TensorShape& tensor, std::int32_t index,
                   std::vector<float>* values, Trainer& trainer) {
  const auto it = weights.where.find(tensor.name);
  if (it == weights.where.end())
    return fail(ErrorKind::kInvalid,
                "no file has " + tensor.name +
                    (tensor.name == "lm_head.weight" ? " (tied embeddings: tieEmbeddings: true)"
                                                     : std::string()));
  const wire::SafetensorsFile& file = weights.files[it->second];
  const std::string where = weights.file_names[it->second] + ": " + tensor.name;
  const wire::SafeTensor* stored = file.find(tensor.name);
  if (stored->shape != tensor.shape)
    return fail(ErrorKind::kInvalid, where + " has the shape " + shape_text(stored->shape) +
                                         ", the model has " + shape_text(tensor.shape));
  values->resize(static_cast<std::size_t>(tensor.elements));
  if (const Status read = file.read(*stored, *values); !read) return read;
  if (!std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }))
    return fail(ErrorKind::kInvalid, where + " holds a value that is not finite");
  trainer.write(std::span(&index, 1), *values);
  return {};
}

}  // namespace

Result<config::ModelSpec> read_model_config(const std::filesystem::path& folder) {
  std::string text;
  ARCH_TRY(text, read_file(folder / "config.json"));
  return parse_hf_config(text);
}

Status load_weights(const std::filesystem::path& folder, Trainer& trainer) {
  auto weights = open_weights(folder);
  if (!weights) return tl::unexpected(weights.error());
  std::vector<float> values;
  for (std::size_t i = 0; i < trainer.tensors().size(); ++i) {
    const TensorShape& tensor = trainer.tensors()[i];
    ARCH_TRY_VOID(load_tensor(*weights, tensor, static_cast<std::int32_t>(i), &values, trainer));
    weights->where.erase(tensor.name);
  }
  std::erase_if(weights->where, [](const auto& entry) { return may_be_left(entry.first); });
  if (weights->where.empty()) return {};
  return fail(ErrorKind::kInvalid, weights->file_names[weights->where.begin()->second] + " has " +
                                       weights->where.begin()->first +
                                       ", which the model has not (" +
                                       std::to_string(weights->where.size()) + " such tensors)");
}

Status first_weights(const std::string& path, std::uint64_t seed, Trainer& trainer) {
  if (!path.empty()) return load_weights(path, trainer);
  trainer.initialise(seed);
  return {};
}

}  // namespace archipelago::learner
