#include "learner/flat_state.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <xxhash.h>

#include "common/base/check.h"
#include "learner/kernels.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {
namespace {

using config::Precision;
constexpr std::int64_t kPiece =
    1 << 16;  // the unit of splitting: fixed, so that results don't depend on threads

std::int64_t pieces(std::int64_t n) { return (n + kPiece - 1) / kPiece; }

// Inner state: this header (little-endian), then mean and square, each `elements` values of the
// precision.
struct StateHeader {
  char magic[8] = {'A', 'R', 'C', 'H', 'I', 'N', 'N', 'R'};
  std::uint32_t version = 1;
  std::uint32_t item_bytes = 4;
  std::int64_t steps = 0;
  std::int64_t elements = 0;
  std::uint64_t checksum = 0;  // XXH3 of what follows
};
static_assert(sizeof(StateHeader) == 40);

Error bad_state(const std::string& what) {
  return Error{ErrorKind::kCorrupt, "inner state: " + what};
}

}  // namespace

FloatBuffer::FloatBuffer(std::int64_t n) : size_(static_cast<std::size_t>(n)) {
  const std::size_t bytes = (size_ * sizeof(float) + 63) / 64 * 64;
  data_.reset(static_cast<float*>(std::aligned_alloc(64, std::max<std::size_t>(bytes, 64))));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);
}

void FloatBuffer::Free::operator()(float* p) const { std::free(p); }

void serially(std::int64_t n, const std::function<void(std::int64_t, std::int64_t)>& body) {
  body(0, n);
}

FlatState::FlatState(std::vector<TensorShape> tensors, AdamWSettings settings)
    : tensors_(std::move(tensors)),
      settings_(settings),
      size_(total_elements(tensors_)),
      weights_(size_),
      gradients_(size_),
      mean_(size_),
      square_(size_) {}

void FlatState::initialise(std::uint64_t seed) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    learner::initialise(tensors_[i], seed, static_cast<std::int64_t>(i),
                        weights_.data() + tensors_[i].offset);
  reset_inner_state();
}

void FlatState::read(std::span<const std::int32_t> indices, std::span<float> out) const {
  std::size_t at = 0;
  for (const std::int32_t index : indices) {
    const TensorShape& tensor = tensors_.at(static_cast<std::size_t>(index));
    const auto n = static_cast<std::size_t>(tensor.elements);
    ARCH_CHECK(at + n <= out.size(),
               << "buffer of " << out.size() << " too small for " << tensor.name);
    std::memcpy(out.data() + at, weights_.data() + tensor.offset, n * sizeof(float));
    at += n;
  }
  ARCH_CHECK(at == out.size(), << "buffer has " << out.size() << " elements, tensors " << at);
}

void FlatState::write(std::span<const std::int32_t> indices, std::span<const float> in) {
  std::size_t at = 0;
  for (const std::int32_t index : indices) {
    const TensorShape& tensor = tensors_.at(static_cast<std::size_t>(index));
    const auto n = static_cast<std::size_t>(tensor.elements);
    ARCH_CHECK(at + n <= in.size(),
               << "buffer of " << in.size() << " too small for " << tensor.name);
    std::memcpy(weights_.data() + tensor.offset, in.data() + at, n * sizeof(float));
    at += n;
  }
  ARCH_CHECK(at == in.size(), << "buffer has " << in.size() << " elements, tensors " << at);
}

FlatState::Applied FlatState::apply(double learning_rate, double scale, const Parallel& parallel) {
  std::vector<double> sums(static_cast<std::size_t>(pieces(size_)));
  const float* gradients = gradients_.data();
  parallel(pieces(size_), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece)
      sums[static_cast<std::size_t>(piece)] = kernels::sum_of_squares(
          gradients + piece * kPiece, std::min(kPiece, size_ - piece * kPiece));
  });
  double sum = 0;
  for (const double value : sums) sum += value;
  Applied applied;
  applied.gradient_norm = std::sqrt(sum) * scale;
  if (!std::isfinite(applied.gradient_norm)) {
    applied.skipped = true;
    return applied;
  }
  ++steps_;
  kernels::AdamW sweep{};
  // The same rule as PyTorch's clip_grad_norm_: scale by clip / (norm + 1e-6) when that is below 1.
  const double shrink =
      settings_.clip > 0 ? std::min(1.0, settings_.clip / (applied.gradient_norm + 1e-6)) : 1.0;
  sweep.lr = static_cast<float>(learning_rate);
  sweep.beta1 = static_cast<float>(settings_.beta1);
  sweep.beta2 = static_cast<float>(settings_.beta2);
  sweep.eps = static_cast<float>(settings_.eps);
  sweep.grad_scale = static_cast<float>(scale * shrink);
  sweep.correction1 =
      static_cast<float>(1.0 - std::pow(settings_.beta1, static_cast<double>(steps_)));
  sweep.correction2 =
      static_cast<float>(1.0 - std::pow(settings_.beta2, static_cast<double>(steps_)));
  parallel(pieces(size_), [&](std::int64_t begin, std::int64_t end) {
    kernels::AdamW mine = sweep;
    const std::int64_t first = begin * kPiece;
    const std::int64_t last = std::min(size_, end * kPiece);
    for (const TensorShape& tensor : tensors_) {
      const std::int64_t from = std::max(first, tensor.offset);
      const std::int64_t upto = std::min(last, tensor.offset + tensor.elements);
      if (from >= upto) continue;
      mine.decay = tensor.decays ? static_cast<float>(settings_.weight_decay) : 0.0F;
      kernels::adamw(mine, weights_.data() + from, gradients + from, mean_.data() + from,
                     square_.data() + from, upto - from);
    }
  });
  return applied;
}

std::vector<std::byte> FlatState::inner_state(Precision precision) const {
  StateHeader header;
  header.item_bytes = precision == Precision::kBf16 ? 2 : 4;
  header.steps = steps_;
  header.elements = size_;
  const auto half = static_cast<std::size_t>(size_) * header.item_bytes;
  std::vector<std::byte> out(sizeof header + 2 * half);
  std::byte* at = out.data() + sizeof header;
  for (const FloatBuffer* buffer : {&mean_, &square_}) {
    if (precision == Precision::kBf16) {
      kernels::to_bf16(buffer->data(), reinterpret_cast<kernels::Bf16*>(at), size_);
    } else {
      std::memcpy(at, buffer->data(), half);
    }
    at += half;
  }
  header.checksum = XXH3_64bits(out.data() + sizeof header, 2 * half);
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

Status FlatState::restore_inner_state(std::span<const std::byte> bytes) {
  StateHeader header;
  const StateHeader expected;
  if (bytes.size() < sizeof header) return fail(bad_state("shorter than its header"));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
    return fail(bad_state("no such magic"));
  if (header.version != expected.version || (header.item_bytes != 2 && header.item_bytes != 4))
    return fail(bad_state("version or precision unknown"));
  if (header.elements != size_)
    return fail(bad_state("has " + std::to_string(header.elements) + " elements, the model " +
                          std::to_string(size_)));
  const auto half = static_cast<std::size_t>(size_) * header.item_bytes;
  if (header.steps < 0 || bytes.size() != sizeof header + 2 * half)
    return fail(bad_state("size or step count wrong"));
  if (XXH3_64bits(bytes.data() + sizeof header, 2 * half) != header.checksum)
    return fail(bad_state("checksum differs"));
  const std::byte* at = bytes.data() + sizeof header;
  for (FloatBuffer* buffer : {&mean_, &square_}) {
    if (header.item_bytes == 2) {
      kernels::to_float(reinterpret_cast<const kernels::Bf16*>(at), buffer->data(), size_);
    } else {
      std::memcpy(buffer->data(), at, half);
    }
    at += half;
  }
  steps_ = header.steps;
  return {};
}

void FlatState::reset_inner_state() {
  std::memset(mean_.data(), 0, static_cast<std::size_t>(size_) * sizeof(float));
  std::memset(square_.data(), 0, static_cast<std::size_t>(size_) * sizeof(float));
  steps_ = 0;
}

}  // namespace archipelago::learner
