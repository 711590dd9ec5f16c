#include "replay/engine.h"

#include <algorithm>
#include <numeric>
#include <xxhash.h>

#include "learner/model_folder.h"
#include "outer-optimizer/store/payload.h"

namespace archipelago::replay {

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  std::unique_ptr<Engine> engine(new Engine);
  ARCH_TRY(engine->layout_, learner::layout_of(options.shapes));
  ARCH_TRY(engine->fragments_,
           learner::FragmentMap::create(engine->layout_, options.fragments, options.scheme));
  ARCH_TRY(const auto cut,
           diloco::Fragmentation::create(engine->layout_, options.fragments, options.scheme));
  ARCH_TRY(engine->store_, outer::FragmentStore::create(engine->layout_, cut, options.threads,
                                                        options.published_bf16));
  engine->options_ = std::move(options);
  return engine;
}

Result<Engine::Learner*> Engine::find(const std::string& name) {
  const auto it = learners_.find(name);
  if (it == learners_.end()) return fail(ErrorKind::kNotFound, "no learner " + name);
  return &it->second;
}

Status Engine::join(const std::string& name, std::unique_ptr<learner::Trainer> trainer) {
  if (learners_.contains(name)) return fail(ErrorKind::kConflict, name + " is here already");
  ARCH_TRY(const auto layout, learner::layout_of(trainer->tensors()));
  if (layout.digest() != layout_.digest())
    return fail(ErrorKind::kInvalid, name + ": " + diloco::first_difference(layout_, layout));
  const auto count = static_cast<std::size_t>(fragments_.count());
  learners_[name] = {std::move(trainer), std::vector<Published>(count),
                     std::vector<diloco::Counters>(count)};
  return {};
}

void Engine::leave(const std::string& name) { learners_.erase(name); }

Result<learner::StepResult> Engine::step(const std::string& name,
                                         std::span<const std::int32_t> tokens,
                                         double learning_rate) {
  ARCH_TRY(Learner* const learner, find(name));
  ARCH_TRY(const auto result, learner->trainer->step(tokens, learning_rate));
  for (auto& counters : learner->counters) {
    ++counters.steps;
    counters.tokens += result.tokens;
  }
  return result;
}

Status Engine::initialise(const std::string& name, std::uint64_t init_seed) {
  ARCH_TRY(Learner* const learner, find(name));
  return learner::first_weights(options_.init_path, init_seed, *learner->trainer);
}

bool Engine::holds(const std::string& name, std::int32_t p, GlobalStep base) const {
  const auto it = learners_.find(name);
  if (it == learners_.end() || p < 0 || p >= fragments_.count()) return false;
  const Published& held = it->second.bases[static_cast<std::size_t>(p)];
  return held.bytes != nullptr && held.version == base;
}

Result<Upload> Engine::snapshot(const std::string& name, std::int32_t p) {
  ARCH_TRY(Learner* const learner, find(name));
  if (p < 0 || p >= fragments_.count())
    return fail(ErrorKind::kInvalid, "no fragment " + std::to_string(p));
  const Published& base = learner->bases[static_cast<std::size_t>(p)];
  if (base.bytes == nullptr)
    return fail(ErrorKind::kConflict, name + " has no base of fragment " + std::to_string(p));
  const learner::FragmentView& view = fragments_[p];
  std::vector<float> values(static_cast<std::size_t>(view.total));
  learner->trainer->read(view.tensors, values);
  const auto from = base.bytes->floats();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = from[i] - values[i];
  Upload upload;
  upload.fragment = p;
  upload.counters = learner->counters[static_cast<std::size_t>(p)];
  ARCH_TRY_VOID(learner::encode_fragment(view, options_.uplink, values, &upload.payload));
  outer::PayloadValidator validator(store_->fragmentation()[FragmentId(p)], options_.uplink);
  ARCH_TRY_VOID(validator.advance(upload.payload));
  upload.norm2 = validator.norm2();
  return upload;
}

Status Engine::apply(const std::string& name, std::int32_t p, const Published& version) {
  ARCH_TRY(Learner* const learner, find(name));
  if (p < 0 || p >= fragments_.count() || version.bytes == nullptr)
    return fail(ErrorKind::kInvalid, "no published fragment " + std::to_string(p));
  const learner::FragmentView& view = fragments_[p];
  const auto from = version.bytes->floats();
  if (options_.blend > 0) {
    std::vector<float> mixed(from.size());
    learner->trainer->read(view.tensors, mixed);
    const auto own = static_cast<float>(options_.blend);
    for (std::size_t i = 0; i < mixed.size(); ++i)
      mixed[i] = own * mixed[i] + (1.0F - own) * from[i];
    learner->trainer->write(view.tensors, mixed);
  } else {
    learner->trainer->write(view.tensors, from);
  }
  learner->bases[static_cast<std::size_t>(p)] = version;
  learner->counters[static_cast<std::size_t>(p)] = {};
  return {};
}

Result<std::vector<std::byte>> Engine::inner_state(const std::string& name) const {
  const auto it = learners_.find(name);
  if (it == learners_.end()) return fail(ErrorKind::kNotFound, "no learner " + name);
  return it->second.trainer->inner_state(options_.recovery_precision);
}

Status Engine::restore_inner_state(const std::string& name, std::span<const std::byte> state) {
  ARCH_TRY(Learner* const learner, find(name));
  return learner->trainer->restore_inner_state(state);
}

Status Engine::seed(const std::string& name, std::uint64_t init_seed) {
  ARCH_TRY(Learner* const learner, find(name));
  ARCH_TRY_VOID(learner::first_weights(options_.init_path, init_seed, *learner->trainer));
  std::vector<float> values;
  for (std::int32_t p = 0; p < fragments_.count(); ++p) {
    const learner::FragmentView& view = fragments_[p];
    values.resize(static_cast<std::size_t>(view.total));
    learner->trainer->read(view.tensors, values);
    ARCH_TRY_VOID(store_->set(FragmentId(p), GlobalStep(0), values, {}, {}));
  }
  return {};
}

Result<bool> Engine::merge(GlobalStep t, std::int32_t p, const outer::OuterRules& rules,
                           const std::vector<Contribution>& members) {
  if (p < 0 || p >= fragments_.count() || store_->version(FragmentId(p)).value < 0)
    return fail(ErrorKind::kConflict, "fragment " + std::to_string(p) + " is not seeded");
  std::vector<outer::MergeInput> inputs;
  inputs.reserve(members.size());
  for (const Contribution& member : members)
    inputs.push_back({member.upload->payload, options_.uplink, member.weight.tokens,
                      member.weight.steps, member.upload->norm2});
  ARCH_TRY(const bool update, store_->prepare(FragmentId(p), inputs, rules.radial));
  store_->apply(FragmentId(p), t, rules, update, {});
  return update;
}

void Engine::publish_masters(GlobalStep version) { store_->publish_masters(version); }

Published Engine::published(std::int32_t p) const {
  const auto frame = store_->keyframe(FragmentId(p));
  return frame ? Published{frame->version, frame->payload} : Published{};
}

std::uint64_t Engine::digest(const Published& version) {
  const auto bytes = version.bytes->bytes();
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace archipelago::replay
