#include "outer-optimizer/model_files.h"

#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "outer-optimizer/store/export.h"

namespace archipelago::outer {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTensors = "model.safetensors";

// Bytes with everything that must live as long as they are sent.
template <class Owner>
http::SharedBytes with_reader(std::shared_ptr<void> reader, std::shared_ptr<Owner> owner,
                              std::span<const std::byte> bytes) {
  struct Both {
    std::shared_ptr<void> reader;
    std::shared_ptr<Owner> owner;
  };
  return {std::make_shared<const Both>(Both{std::move(reader), std::move(owner)}), bytes};
}

Error too_many() {
  return {ErrorKind::kUnavailable,
          std::to_string(ModelFiles::kMaxReaders) + " readers of the model are served at once"};
}

http::Reply names_reply(const std::set<std::string>& names) {
  return http::Reply::json(
      nlohmann::json(names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void name_step(http::Reply& reply, GlobalStep step) {
  reply.headers.emplace_back("X-Archipelago-Step", std::to_string(step.value));
}

}  // namespace

ModelFiles::ModelFiles(fs::path data_dir, std::function<bool()> finished)
    : checkpoints_(data_dir / "checkpoints"),
      model_(data_dir / "model"),
      finished_(std::move(finished)) {}

Result<std::optional<GlobalStep>> ModelFiles::step_of(const http::Request& request) const {
  const auto kept = list_checkpoints(checkpoints_);
  if (!request.param("step")) {
    if (finished_()) return std::optional<GlobalStep>();
    if (kept.empty()) return fail(ErrorKind::kNotFound, "no checkpoint has been written yet");
    return std::optional<GlobalStep>(kept.back());
  }
  ARCH_TRY(const std::int64_t step, request.int_param("step", 0, std::int64_t{1} << 40));
  std::string text;
  for (const GlobalStep one : kept) {
    if (one == GlobalStep(step)) return std::optional<GlobalStep>(one);
    text += (text.empty() ? "" : ", ") + std::to_string(one.value);
  }
  return fail(ErrorKind::kNotFound, "step: given " + std::to_string(step) +
                                        ", checkpoints are kept of " +
                                        (text.empty() ? "no step" : text));
}

Result<http::Reply> ModelFiles::list(const http::Request& request) {
  ARCH_TRY(const std::optional<GlobalStep> step, step_of(request));
  std::set<std::string> names;
  if (step) {
    ARCH_TRY(const CheckpointInfo info, read_checkpoint_info(checkpoints_, *step));
    names.insert(kTensors);
    for (const auto& [name, content] : info.assets) names.insert(name);
    http::Reply reply = names_reply(names);
    name_step(reply, *step);
    return reply;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_, error)) {
    if (entry.is_regular_file(error) && entry.path().extension() != ".tmp")
      names.insert(entry.path().filename().string());
  }
  return names_reply(names);
}

Result<http::Reply> ModelFiles::get(const http::Request& request) {
  const std::string& name = request.args.at(0);  // a plain name (the server checked)
  ARCH_TRY(const std::optional<GlobalStep> step, step_of(request));
  if (!step) return get_final(name);
  ARCH_TRY(const CheckpointInfo info, read_checkpoint_info(checkpoints_, *step));
  if (name == kTensors) return get_tensors(info);
  const auto asset = info.assets.find(name);
  if (asset == info.assets.end()) return fail(ErrorKind::kNotFound, "no such file of the model");
  http::Reply reply = http::Reply::bytes({});
  reply.body = asset->second;
  name_step(reply, *step);
  return reply;
}

Result<http::Reply> ModelFiles::get_final(const std::string& name) {
  auto mapped = MappedFile::open(model_ / name);
  if (!mapped) return fail(ErrorKind::kNotFound, "no such file of the model");
  auto reader = take_reader();
  if (reader == nullptr) return fail(too_many());
  auto owner = std::make_shared<const MappedFile>(std::move(*mapped));
  const auto bytes = owner->bytes();
  return http::Reply::bytes({with_reader(std::move(reader), std::move(owner), bytes)});
}

Result<http::Reply> ModelFiles::get_tensors(const CheckpointInfo& info) {
  const auto reader = take_reader();
  if (reader == nullptr) return fail(too_many());
  bool verify = false;
  {
    const std::lock_guard lock(mutex_);
    verify = !verified_.contains(info.step);
  }
  ARCH_TRY(const auto fragmentation,
           diloco::Fragmentation::create(info.layout, info.fragments, info.scheme));
  ARCH_TRY(const auto parts, map_published(checkpoints_, info, fragmentation, verify));
  if (verify) {
    const std::lock_guard lock(mutex_);
    if (verified_.size() >= 1024) verified_.clear();
    verified_.insert(info.step);
  }
  std::vector<std::span<const float>> published;
  for (const MappedFragment& part : parts) published.push_back(part.values);
  const auto& tensors = info.layout.tensors();
  const auto pieces = tensor_pieces(info.layout, fragmentation, published);
  std::vector<wire::SafeTensorView> views(tensors.size());
  std::vector<http::SharedBytes> bytes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    views[i] = {tensors[i].name, tensors[i].shape, pieces[i].front().values};
    for (const TensorPiece& piece : pieces[i]) {
      if (&piece != &pieces[i].front()) views[i].more.push_back(piece.values);
      bytes.push_back(with_reader(reader, parts[piece.fragment].file, std::as_bytes(piece.values)));
    }
  }
  http::Reply reply = http::Reply::bytes(std::move(bytes));
  ARCH_TRY(reply.body, wire::safetensors_head(views));
  name_step(reply, info.step);
  return reply;
}

std::shared_ptr<void> ModelFiles::take_reader() {
  if (readers_->fetch_add(1) >= kMaxReaders) {
    readers_->fetch_sub(1);
    return nullptr;
  }
  // The count outlives us: a reply may be sent while we go.
  return {readers_.get(), [readers = readers_](void*) { readers->fetch_sub(1); }};
}

void add_model_routes(http::Server& server, ModelFiles& models) {
  const auto answer = [](Result<http::Reply> reply) {
    if (reply) return std::move(*reply);
    // Our own file, not the asker's.
    if (reply.error().kind == ErrorKind::kCorrupt)
      return http::error_reply(500, "corrupt", reply.error().message);
    return http::error_reply(reply.error());
  };
  server.route("GET", "/v1/model", [&models, answer](const http::Request& request) {
    return answer(models.list(request));
  });
  server.route("GET", "/v1/model/{}", [&models, answer](const http::Request& request) {
    return answer(models.get(request));
  });
}

bool holds_final_model(const fs::path& data_dir) {
  const auto kept = list_checkpoints(data_dir / "checkpoints");
  std::error_code error;
  if (!fs::is_regular_file(data_dir / "model" / kTensors, error)) return false;
  if (kept.empty()) return true;
  const auto info = read_checkpoint_info(data_dir / "checkpoints", kept.back());
  if (!info) return false;
  for (const auto& [name, content] : info->assets)
    if (!fs::is_regular_file(data_dir / "model" / name, error)) return false;
  return true;
}

}  // namespace archipelago::outer
