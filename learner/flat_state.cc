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

// Inner state: this header (little-endian), then mean (`elements` values of the precision) and
// square (as many for AdamW, only those of the tensors that are not Muon's for Muon).
struct StateHeader {
  char magic[8] = {'A', 'R', 'C', 'H', 'I', 'N', 'N', 'R'};
  std::uint32_t version = 1;
  std::uint16_t item_bytes = 4;
  std::uint16_t optimizer = 0;  // 0 AdamW, 1 Muon
  std::int64_t steps = 0;
  std::int64_t elements = 0;
  std::uint64_t checksum = 0;  // XXH3 of what follows
};
static_assert(sizeof(StateHeader) == 40);

Error bad_state(const std::string& what) {
  return Error{ErrorKind::kCorrupt, "inner state: " + what};
}

const char* optimizer_name(std::uint16_t optimizer) { return optimizer == 1 ? "Muon" : "AdamW"; }

// Where each tensor's second moments begin; `total` of them in all.
std::vector<std::int64_t> square_offsets(const std::vector<TensorShape>& tensors, bool muon,
                                         std::int64_t* total) {
  std::vector<std::int64_t> offsets;
  *total = 0;
  for (const TensorShape& tensor : tensors) {
    offsets.push_back(*total);
    if (!muon || !tensor.hidden_matrix) *total += tensor.elements;
  }
  return offsets;
}

std::int64_t largest_of_muon(const std::vector<TensorShape>& tensors, bool muon) {
  std::int64_t largest = 0;
  for (const TensorShape& tensor : tensors)
    if (muon && tensor.hidden_matrix) largest = std::max(largest, tensor.elements);
  return largest;
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

FlatState::FlatState(std::vector<TensorShape> tensors, OptimizerSettings settings,
                     Orthogonalise orthogonalise)
    : tensors_(std::move(tensors)),
      settings_(settings),
      orthogonalise_(std::move(orthogonalise)),
      size_(total_elements(tensors_)),
      square_offsets_(square_offsets(tensors_, settings_.muon, &squares_)),
      weights_(size_),
      gradients_(size_),
      mean_(size_),
      square_(squares_),
      direction_(largest_of_muon(tensors_, settings_.muon)) {}

void FlatState::initialise(std::uint64_t seed) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    learner::initialise(tensors_[i], seed, static_cast<std::int64_t>(i),
                        weights_.data() + tensors_[i].offset);
  reset_inner_state();
}

void FlatState::read(std::span<const TensorRange> ranges, std::span<float> out) const {
  std::size_t at = 0;
  for (const TensorRange& range : ranges) {
    const auto n = static_cast<std::size_t>(range.elements);
    ARCH_CHECK(range.offset >= 0 && range.offset + range.elements <= size_ && at + n <= out.size(),
               << "buffer of " << out.size() << " too small, or no range of the model: "
               << range.offset << " + " << range.elements);
    std::memcpy(out.data() + at, weights_.data() + range.offset, n * sizeof(float));
    at += n;
  }
  ARCH_CHECK(at == out.size(), << "buffer has " << out.size() << " elements, ranges " << at);
}

void FlatState::write(std::span<const TensorRange> ranges, std::span<const float> in) {
  std::size_t at = 0;
  for (const TensorRange& range : ranges) {
    const auto n = static_cast<std::size_t>(range.elements);
    ARCH_CHECK(range.offset >= 0 && range.offset + range.elements <= size_ && at + n <= in.size(),
               << "buffer of " << in.size() << " too small, or no range of the model: "
               << range.offset << " + " << range.elements);
    std::memcpy(weights_.data() + range.offset, in.data() + at, n * sizeof(float));
    at += n;
  }
  ARCH_CHECK(at == in.size(), << "buffer has " << in.size() << " elements, ranges " << at);
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
  // The same rule as PyTorch's clip_grad_norm_: scale by clip / (norm + 1e-6) when that is below 1.
  const double shrink =
      settings_.clip > 0 ? std::min(1.0, settings_.clip / (applied.gradient_norm + 1e-6)) : 1.0;
  const auto grad_scale = static_cast<float>(scale * shrink);
  apply_adamw(learning_rate, grad_scale, parallel);
  if (settings_.muon) apply_muon(learning_rate, grad_scale, parallel);
  return applied;
}

void FlatState::apply_adamw(double learning_rate, float grad_scale, const Parallel& parallel) {
  kernels::AdamW sweep{};
  sweep.lr = static_cast<float>(learning_rate);
  sweep.beta1 = static_cast<float>(settings_.beta1);
  sweep.beta2 = static_cast<float>(settings_.beta2);
  sweep.eps = static_cast<float>(settings_.eps);
  sweep.grad_scale = grad_scale;
  sweep.correction1 =
      static_cast<float>(1.0 - std::pow(settings_.beta1, static_cast<double>(steps_)));
  sweep.correction2 =
      static_cast<float>(1.0 - std::pow(settings_.beta2, static_cast<double>(steps_)));
  const float* gradients = gradients_.data();
  parallel(pieces(size_), [&](std::int64_t begin, std::int64_t end) {
    kernels::AdamW mine = sweep;
    const std::int64_t first = begin * kPiece;
    const std::int64_t last = std::min(size_, end * kPiece);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const TensorShape& tensor = tensors_[i];
      const std::int64_t from = std::max(first, tensor.offset);
      const std::int64_t upto = std::min(last, tensor.offset + tensor.elements);
      if (from >= upto || is_muons(tensor)) continue;
      mine.decay = tensor.decays ? static_cast<float>(settings_.weight_decay) : 0.0F;
      kernels::adamw(mine, weights_.data() + from, gradients + from, mean_.data() + from,
                     square_.data() + square_offsets_[i] + (from - tensor.offset), upto - from);
    }
  });
}

// Muon on one matrix after another: a matrix multiply uses all threads by itself.
void FlatState::apply_muon(double learning_rate, float grad_scale, const Parallel& parallel) {
  for (const TensorShape& tensor : tensors_) {
    if (!is_muons(tensor)) continue;
    float* direction = direction_.data();
    const auto each_piece = [&](const auto& body) {
      parallel(pieces(tensor.elements), [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t from = begin * kPiece;
        body(from, std::min(tensor.elements, end * kPiece) - from);
      });
    };
    each_piece([&](std::int64_t from, std::int64_t n) {
      const std::int64_t at = tensor.offset + from;
      kernels::muon_momentum(gradients_.data() + at, grad_scale, static_cast<float>(kMuonMomentum),
                             mean_.data() + at, direction + from, n);
    });
    orthogonalise_(direction, tensor.shape[0], tensor.shape[1]);
    const double decay = tensor.decays ? settings_.weight_decay : 0.0;
    const auto keep = static_cast<float>(1.0 - learning_rate * decay);
    const auto step =
        static_cast<float>(learning_rate * muon_scale(tensor.shape[0], tensor.shape[1]));
    each_piece([&](std::int64_t from, std::int64_t n) {
      kernels::decayed_step(keep, step, direction + from, weights_.data() + tensor.offset + from,
                            n);
    });
  }
}

std::vector<std::byte> FlatState::inner_state(Precision precision) const {
  StateHeader header;
  header.item_bytes = precision == Precision::kBf16 ? 2 : 4;
  header.optimizer = settings_.muon ? 1 : 0;
  header.steps = steps_;
  header.elements = size_;
  const auto bytes = static_cast<std::size_t>(size_ + squares_) * header.item_bytes;
  std::vector<std::byte> out(sizeof header + bytes);
  std::byte* at = out.data() + sizeof header;
  for (const FloatBuffer* buffer : {&mean_, &square_}) {
    const std::span<const float> values = buffer->span();
    if (precision == Precision::kBf16) {
      kernels::to_bf16(values.data(), reinterpret_cast<kernels::Bf16*>(at),
                       static_cast<std::int64_t>(values.size()));
    } else {
      std::memcpy(at, values.data(), values.size_bytes());
    }
    at += values.size() * header.item_bytes;
  }
  header.checksum = XXH3_64bits(out.data() + sizeof header, bytes);
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
  if (header.version != expected.version || (header.item_bytes != 2 && header.item_bytes != 4) ||
      header.optimizer > 1)
    return fail(bad_state("version, precision or optimizer unknown"));
  if ((header.optimizer == 1) != settings_.muon)
    return fail(bad_state(std::string("is of ") + optimizer_name(header.optimizer) +
                          ", this run's inner.optimizer is " +
                          optimizer_name(settings_.muon ? 1 : 0)));
  if (header.elements != size_)
    return fail(bad_state("has " + std::to_string(header.elements) + " elements, the model " +
                          std::to_string(size_)));
  const auto payload = static_cast<std::size_t>(size_ + squares_) * header.item_bytes;
  if (header.steps < 0 || bytes.size() != sizeof header + payload)
    return fail(bad_state("size or step count wrong"));
  if (XXH3_64bits(bytes.data() + sizeof header, payload) != header.checksum)
    return fail(bad_state("checksum differs"));
  const std::byte* at = bytes.data() + sizeof header;
  for (FloatBuffer* buffer : {&mean_, &square_}) {
    const std::span<float> values = buffer->span();
    if (header.item_bytes == 2) {
      kernels::to_float(reinterpret_cast<const kernels::Bf16*>(at), values.data(),
                        static_cast<std::int64_t>(values.size()));
    } else {
      std::memcpy(values.data(), at, values.size_bytes());
    }
    at += values.size() * header.item_bytes;
  }
  steps_ = header.steps;
  return {};
}

void FlatState::reset_inner_state() {
  for (FloatBuffer* buffer : {&mean_, &square_})
    std::memset(buffer->data(), 0, buffer->span().size_bytes());
  steps_ = 0;
}

}  // namespace archipelago::learner
