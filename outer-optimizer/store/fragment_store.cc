#include "outer-optimizer/store/fragment_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "common/codec/bf16_grid.h"
#include "common/diloco/merge.h"
#include "common/diloco/weights.h"

namespace archipelago::outer {
namespace {

constexpr std::size_t kTile = codec::kChunk;
// Tiles a worker takes at once: enough to amortise the lock, small enough to balance two threads on
// small tensors.
constexpr std::size_t kGrain = 16;
// Below this a norm says "nothing moved": 1/norm would not fit fp32.
constexpr double kZeroNorm = 1e-30;

std::size_t as_size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::size_t tiles_of(std::size_t elements) { return (elements + kTile - 1) / kTile; }

}  // namespace

// What merging one tensor needs to know; made before any element is touched.
struct FragmentStore::TensorPlan {
  std::vector<std::size_t> member;  // who counts, in order
  std::vector<float> coefficient;
  std::vector<std::span<const std::byte>> bytes;  // encoded tensor of each
  diloco::MergeCoefficients rules;
  bool radial = false;
  std::size_t slot = 0;  // of the tensor within the fragment
};

Result<std::unique_ptr<FragmentStore>> FragmentStore::create(
    const diloco::Layout& layout, const diloco::Fragmentation& fragmentation, int threads,
    bool published_bf16) {
  try {
    return std::unique_ptr<FragmentStore>(
        new FragmentStore(layout, fragmentation, threads, published_bf16));
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kNoSpace,
                "the outer optimizer's memory cannot hold 14 bytes for each of " +
                    std::to_string(layout.elements()) + " parameters");
  }
}

FragmentStore::FragmentStore(const diloco::Layout& layout,
                             const diloco::Fragmentation& fragmentation, int threads,
                             bool published_bf16)
    : fragmentation_(fragmentation),
      published_bf16_(published_bf16),
      history_limit_(4 * static_cast<std::uint64_t>(layout.elements())),
      pool_(threads),
      gradient_(buffers_->take(as_size(fragmentation.max_elements()) * sizeof(float))) {
  for (const auto& tensor : layout.tensors()) classes_.push_back(tensor.merge_class);
  for (const auto& fragment : fragmentation_.fragments()) {
    Part fresh;
    fresh.master = Buffer::of_floats(fragment.elements);
    fresh.momentum = Buffer::of_floats(fragment.elements);
    fresh.published = buffers_->take(as_size(fragment.elements) * sizeof(float));
    parts_.push_back(std::move(fresh));
  }
}

Status FragmentStore::set(FragmentId p, GlobalStep version, std::span<const float> master,
                          std::span<const float> momentum, std::span<const float> published) {
  const std::size_t elements = as_size(fragmentation_[p].elements);
  auto fits = [&](std::span<const float> values) { return values.size() == elements; };
  if (!fits(master) || (!momentum.empty() && !fits(momentum)) ||
      (!published.empty() && !fits(published)))
    return fail(ErrorKind::kInvalid, "fragment " + std::to_string(p.value) + " has " +
                                         std::to_string(elements) + " elements, got " +
                                         std::to_string(master.size()));
  for (const auto& values : {master, momentum, published})
    if (!codec::all_finite(values))
      return fail(ErrorKind::kRefused,
                  "fragment " + std::to_string(p.value) + " has a value that is not finite");
  const Arrays to = arrays(p);
  std::copy(master.begin(), master.end(), to.master.begin());
  if (momentum.empty())
    std::fill(to.momentum.begin(), to.momentum.end(), 0.0F);
  else
    std::copy(momentum.begin(), momentum.end(), to.momentum.begin());
  const auto& from = published.empty() ? master : published;
  std::copy(from.begin(), from.end(), to.published.begin());
  if (published_bf16_) codec::round_to_bf16(to.published);
  adopt(p, version);
  return {};
}

FragmentStore::Arrays FragmentStore::arrays(FragmentId p) {
  Part& target = part(p);
  return {target.master.floats(), target.momentum.floats(), target.published->floats()};
}

void FragmentStore::adopt(FragmentId p, GlobalStep version) {
  const std::lock_guard lock(mutex_);
  Part& target = part(p);
  drop_history(target);
  target.version = version;
  target.meta = std::make_shared<const std::string>();
}

void FragmentStore::merge_tensor(const diloco::FragmentTensor& tensor, const TensorPlan& plan,
                                 std::span<const MergeInput> members) {
  const std::size_t total = as_size(tensor.elements);
  const std::span<float> sum = gradient_->floats().subspan(as_size(tensor.offset), total);
  const std::size_t tiles = tiles_of(total);
  const bool needs_norm = plan.radial && !plan.rules.identity;
  std::vector<double> partial(needs_norm ? tiles : 0, 0.0);
  pool_.run(tiles, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin; tile < end; ++tile) {
      const std::size_t first = tile * kTile;
      const std::span<float> out = sum.subspan(first, std::min(kTile, total - first));
      std::size_t next = 0;
      if (plan.member.size() == 1 && plan.coefficient[0] == 1.0F) {
        codec::decode_range(members[plan.member[0]].codec, plan.bytes[0], total, first, out);
        next = 1;
      } else {
        std::fill(out.begin(), out.end(), 0.0F);
      }
      for (; next < plan.member.size(); ++next)
        codec::decode_accumulate_range(members[plan.member[next]].codec, plan.bytes[next], total,
                                       first, plan.coefficient[next], out);
      if (needs_norm) partial[tile] = codec::sumsq(out);
    }
  });
  double norm2 = 0;
  for (const double chunk : partial) norm2 += chunk;  // in index order, whoever computed them
  scale_[plan.slot] = needs_norm ? static_cast<float>(diloco::rda_scale(plan.rules, norm2)) : 1.0F;
}

void FragmentStore::reserve_gradient(FragmentId p) {
  const std::size_t bytes = as_size(fragmentation_[p].elements) * sizeof(float);
  if (gradient_ != nullptr && gradient_->size() == bytes) return;
  gradient_.reset();  // into the pool first: it may be the one that comes back
  gradient_ = buffers_->take(bytes);
}

Result<bool> FragmentStore::prepare(FragmentId p, std::span<const MergeInput> members,
                                    RadialClasses radial) {
  const diloco::Fragment& fragment = fragmentation_[p];
  gradient_of_ = FragmentId(-1);
  std::vector<double> weights;
  std::vector<std::vector<std::uint64_t>> offsets;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const MergeInput& input = members[m];
    offsets.push_back(payload_offsets(fragment, input.codec));
    if (input.payload.size() != offsets.back().back() ||
        input.norm2.size() != fragment.tensors.size())
      return fail(ErrorKind::kInvalid, "member " + std::to_string(m) + ": payload of " +
                                           std::to_string(input.payload.size()) +
                                           " bytes, expected " +
                                           std::to_string(offsets.back().back()));
    for (const double norm2 : input.norm2)
      if (!(norm2 >= 0) || norm2 > kMaxTensorNorm * kMaxTensorNorm)
        return fail(ErrorKind::kRefused,
                    "member " + std::to_string(m) + ": a tensor's norm is out of bounds");
    weights.push_back(diloco::contribution_weight(input.tokens, input.steps));
  }
  if (!diloco::mean_coefficients(weights).any) return false;

  reserve_gradient(p);
  scale_.assign(fragment.tensors.size(), 1.0F);
  std::vector<double> norms(members.size());
  for (std::size_t slot = 0; slot < fragment.tensors.size(); ++slot) {
    const auto& tensor = fragment.tensors[slot];
    TensorPlan plan;
    plan.slot = slot;
    plan.radial = radial[classes_[tensor.index]];
    for (std::size_t m = 0; m < members.size(); ++m) {
      const double norm = std::sqrt(members[m].norm2[slot]);
      norms[m] = norm < kZeroNorm ? 0.0 : norm;
    }
    plan.rules =
        plan.radial ? diloco::rda_coefficients(weights, norms) : diloco::mean_coefficients(weights);
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (plan.rules.per_member[m] == 0) continue;
      plan.member.push_back(m);
      plan.coefficient.push_back(static_cast<float>(plan.rules.per_member[m]));
      plan.bytes.push_back(
          members[m].payload.subspan(offsets[m][slot], offsets[m][slot + 1] - offsets[m][slot]));
    }
    merge_tensor(tensor, plan, members);
  }
  gradient_of_ = p;
  return true;
}

void FragmentStore::gradient(std::int64_t first, std::span<float> out) const {
  ARCH_CHECK(gradient_of_.value >= 0);
  const std::span<const float> sum = std::as_const(*gradient_).floats();
  const auto& tensors = fragmentation_[gradient_of_].tensors;
  // The tensor that `first` lies in.
  std::size_t slot = static_cast<std::size_t>(
      std::upper_bound(
          tensors.begin(), tensors.end(), first,
          [](std::int64_t at, const diloco::FragmentTensor& t) { return at < t.offset; }) -
      tensors.begin() - 1);
  while (!out.empty()) {
    const auto& tensor = tensors[slot];
    const std::size_t take = std::min(out.size(), as_size(tensor.offset + tensor.elements - first));
    std::memcpy(out.data(), sum.data() + first, take * sizeof(float));
    if (scale_[slot] != 1.0F) codec::scale_inplace(out.first(take), scale_[slot]);
    out = out.subspan(take);
    first += static_cast<std::int64_t>(take);
    ++slot;
  }
}

std::span<float> FragmentStore::load_gradient(FragmentId p) {
  reserve_gradient(p);
  gradient_of_ = p;
  scale_.assign(fragmentation_[p].tensors.size(), 1.0F);
  return gradient_->floats();
}

namespace {

// The arrays of one tensor during pass 2.
struct TensorStep {
  const OuterRules& rules;
  bool update = false;
  bool published_bf16 = false;
  float scale = 1.0F;
  std::span<float> momentum, master;
  std::span<const float> old_published;
  std::span<float> new_published;  // holds the gradient until its tile is written
  std::span<std::byte> encoded;    // empty with an exact downlink

  // Elements [first, first + n), n <= kTile: outer step, delta against the published copy, the new
  // published copy.
  void tile(std::size_t first, std::size_t n) const {
    ARCH_CHECK(n <= kTile);
    alignas(64) std::array<float, kTile> scratch;
    const std::span<float> work(scratch.data(), n);
    const std::span<float> values = master.subspan(first, n);
    if (update) {
      std::memcpy(work.data(), new_published.data() + first, n * sizeof(float));
      if (scale != 1.0F) codec::scale_inplace(work, scale);
      codec::outer_step(rules.step, work, momentum.subspan(first, n), values);
    }
    const std::span<float> fresh = new_published.subspan(first, n);
    if (encoded.empty()) {
      std::memcpy(fresh.data(), values.data(), n * sizeof(float));
      if (published_bf16) codec::round_to_bf16(fresh);
      return;
    }
    const std::span<const float> old = old_published.subspan(first, n);
    codec::subtract(values, old, work);
    const std::span<std::byte> code = encoded.subspan(codec::encoded_size(rules.downlink, first),
                                                      codec::encoded_size(rules.downlink, n));
    const auto done = codec::encode(rules.downlink, work, code);
    ARCH_CHECK(done.has_value(), << "a master parameter is not finite");
    std::memcpy(fresh.data(), old.data(), n * sizeof(float));
    codec::decode_accumulate_range(rules.downlink, code, n, 0, 1.0F, fresh);
    if (published_bf16) codec::round_to_bf16(fresh);
  }
};

}  // namespace

std::uint64_t FragmentStore::apply(FragmentId p, GlobalStep version, const OuterRules& rules,
                                   bool update, std::string meta) {
  ARCH_CHECK(!update || gradient_of_ == p, << "no gradient of fragment " << p);
  const diloco::Fragment& fragment = fragmentation_[p];
  Part& target = part(p);
  const bool delta = rules.downlink != codec::Codec::kFp32;
  const std::vector<std::uint64_t> offsets = payload_offsets(fragment, rules.downlink);
  auto encoded = delta ? std::make_shared<Buffer>(offsets.back()) : nullptr;
  // The new published copy grows in the gradient's own buffer, tile by tile: a fragment less of
  // memory and of fresh pages.
  if (!update) reserve_gradient(p);
  std::shared_ptr<Buffer> next = std::exchange(gradient_, nullptr);
  gradient_of_ = FragmentId(-1);

  for (std::size_t slot = 0; slot < fragment.tensors.size(); ++slot) {
    const std::size_t begin = as_size(fragment.tensors[slot].offset);
    const std::size_t total = as_size(fragment.tensors[slot].elements);
    const TensorStep step{
        rules,
        update,
        published_bf16_,
        update ? scale_[slot] : 1.0F,
        target.momentum.floats().subspan(begin, total),
        target.master.floats().subspan(begin, total),
        std::as_const(*target.published).floats().subspan(begin, total),
        next->floats().subspan(begin, total),
        delta ? encoded->bytes().subspan(offsets[slot], offsets[slot + 1] - offsets[slot])
              : std::span<std::byte>{}};
    pool_.run(tiles_of(total), kGrain, [&](std::size_t first, std::size_t last) {
      for (std::size_t tile = first; tile < last; ++tile)
        step.tile(tile * kTile, std::min(kTile, total - tile * kTile));
    });
  }
  return publish(p, version, rules.downlink, std::move(encoded), std::move(next), std::move(meta));
}

std::uint64_t FragmentStore::publish(FragmentId p, GlobalStep version, codec::Codec codec,
                                     std::shared_ptr<Buffer> encoded, std::shared_ptr<Buffer> next,
                                     std::string meta) {
  auto shared_meta = std::make_shared<const std::string>(std::move(meta));
  std::uint64_t bytes = next->size();
  const std::lock_guard lock(mutex_);
  Part& target = part(p);
  if (encoded != nullptr) {
    bytes = encoded->size();
    history_bytes_ += bytes;
    target.deltas.push_back(
        Frame{p, version, target.version, codec, std::move(encoded), shared_meta});
    trim_history();
  }
  target.version = version;
  target.meta = std::move(shared_meta);
  target.published = std::move(next);  // the old copy lives on while a reader streams it
  return bytes;
}

void FragmentStore::trim_history() {
  auto drop = [this](Part& from) {
    history_bytes_ -= from.deltas.front().payload->size();
    from.deltas.pop_front();
  };
  for (Part& each : parts_)
    while (each.deltas.size() > kMaxDeltasPerFragment) drop(each);
  while (history_bytes_ > history_limit_) {
    Part* oldest = nullptr;
    for (Part& each : parts_)
      if (!each.deltas.empty() &&
          (oldest == nullptr || each.deltas.front().version < oldest->deltas.front().version))
        oldest = &each;
    if (oldest == nullptr) return;
    drop(*oldest);
  }
}

void FragmentStore::publish_masters(GlobalStep version) {
  for (std::int32_t i = 0; i < fragmentation_.count(); ++i) {
    const FragmentId p(i);
    Part& target = part(p);
    std::shared_ptr<Buffer> next = buffers_->take(target.published->size());
    std::memcpy(next->bytes().data(), target.master.bytes().data(), next->size());
    if (published_bf16_) codec::round_to_bf16(next->floats());
    publish(p, version, codec::Codec::kFp32, nullptr, std::move(next), {});
    const std::lock_guard lock(mutex_);
    drop_history(target);
  }
}

void FragmentStore::drop_history(Part& of) {
  for (const Frame& frame : of.deltas) history_bytes_ -= frame.payload->size();
  of.deltas.clear();
}

std::optional<Frame> FragmentStore::keyframe(FragmentId p) const {
  const std::lock_guard lock(mutex_);
  const Part& from = part(p);
  if (from.version.value < 0) return std::nullopt;
  return Frame{p, from.version, kNoBase, codec::Codec::kFp32, from.published, from.meta};
}

std::optional<Frame> FragmentStore::frame(FragmentId p, GlobalStep have) const {
  {
    const std::lock_guard lock(mutex_);
    const Part& from = part(p);
    if (from.version.value < 0 || have >= from.version) return std::nullopt;
    for (const Frame& delta : from.deltas)
      if (have.value >= 0 && delta.base == have) return delta;
  }
  auto whole = keyframe(p);
  if (whole && published_bf16_) return as_bf16(std::move(*whole));
  return whole;
}

// Made anew for each that asks: a pass over the fragment, against half as many bytes on the link.
Frame FragmentStore::as_bf16(Frame keyframe) const {
  const diloco::Fragment& fragment = fragmentation_[keyframe.fragment];
  const auto offsets = payload_offsets(fragment, codec::Codec::kBf16);
  auto encoded = std::make_shared<Buffer>(offsets.back());
  for (std::size_t slot = 0; slot < fragment.tensors.size(); ++slot) {
    const auto& part = fragment.tensors[slot];
    const auto done = codec::encode(
        codec::Codec::kBf16,
        keyframe.payload->floats().subspan(as_size(part.offset), as_size(part.elements)),
        encoded->bytes().subspan(offsets[slot], offsets[slot + 1] - offsets[slot]));
    ARCH_CHECK(done.has_value(), << "a published parameter is not finite");
  }
  keyframe.codec = codec::Codec::kBf16;
  keyframe.payload = std::move(encoded);
  return keyframe;
}

GlobalStep FragmentStore::version(FragmentId p) const {
  const std::lock_guard lock(mutex_);
  return part(p).version;
}

std::vector<GlobalStep> FragmentStore::versions() const {
  const std::lock_guard lock(mutex_);
  std::vector<GlobalStep> result;
  for (const Part& each : parts_) result.push_back(each.version);
  return result;
}

std::uint64_t FragmentStore::history_bytes() const {
  const std::lock_guard lock(mutex_);
  return history_bytes_;
}

std::span<const float> FragmentStore::master(FragmentId p) const { return part(p).master.floats(); }
std::span<const float> FragmentStore::momentum(FragmentId p) const {
  return part(p).momentum.floats();
}

SharedBuffer FragmentStore::published(FragmentId p) const {
  const std::lock_guard lock(mutex_);
  return part(p).published;
}

}  // namespace archipelago::outer
