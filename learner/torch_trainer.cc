#include "learner/torch_trainer.h"

#include <cmath>
#include <cstring>
#include <malloc.h>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "common/base/check.h"
#include "common/base/rng.h"
#include "learner/flat_state.h"
#include "learner/kernels.h"
#include "learner/llama_shapes.h"
#include "learner/llama_torch.h"

namespace archipelago::learner {
namespace {

OptimizerSettings settings_of(const config::InnerSpec& inner) {
  OptimizerSettings settings;
  settings.muon = inner.optimizer == "muon";
  settings.beta1 = inner.beta1;
  settings.beta2 = inner.beta2;
  settings.weight_decay = inner.weight_decay;
  settings.clip = inner.gradient_clip;
  return settings;
}

void on_torch_threads(std::int64_t n, const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, n, 1, body);
}

// newton_schulz by libtorch's matrix multiply; in bf16 where the run's multiplies are bf16 anyway:
// the iteration only has to bring singular values near 1.
void newton_schulz_torch(float* x, std::int64_t rows, std::int64_t cols, bool bf16) {
  const torch::NoGradGuard no_gradients;
  const at::Tensor whole = torch::from_blob(x, {rows, cols}, at::kFloat);
  const bool tall = rows > cols;
  const double norm =
      std::max(std::sqrt(kernels::sum_of_squares(x, rows * cols)), NewtonSchulz::kSmallest);
  at::Tensor wide = (tall ? whole.t() : whole).mul(1.0 / norm).contiguous();
  if (bf16) wide = wide.to(at::kBFloat16);
  for (int i = 0; i < NewtonSchulz::kIterations; ++i) {
    const at::Tensor gram = at::mm(wide, wide.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, NewtonSchulz::kB, NewtonSchulz::kC);
    wide = at::addmm(wide, polynomial, wide, NewtonSchulz::kA, 1.0);
  }
  whole.copy_(tall ? wide.t() : wide);
}

class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(const config::ModelSpec& model, const config::InnerSpec& inner)
      : model_(model),
        micro_batch_(inner.batch_size),
        state_(llama_shapes(model), settings_of(inner),
               [bf16 = inner.precision == config::Precision::kBf16](float* x, std::int64_t rows,
                                                                    std::int64_t cols) {
                 newton_schulz_torch(x, rows, cols, bf16);
               }),
        llama_(model, inner.precision == config::Precision::kBf16),
        weights_(llama_views(model, state_.tensors(), state_.weights().data(),
                             state_.gradients().data())) {}

  [[nodiscard]] const std::vector<TensorShape>& tensors() const override {
    return state_.tensors();
  }
  [[nodiscard]] std::int64_t context_length() const override { return model_.context_length; }
  [[nodiscard]] Numerics numerics() const override {
    return {std::string("libtorch ") + TORCH_VERSION + " " + at::get_cpu_capability(),
            at::get_num_threads()};
  }
  void initialise(std::uint64_t seed) override { state_.initialise(seed); }
  using Trainer::read;
  using Trainer::write;
  void read(std::span<const TensorRange> ranges, std::span<float> out) const override {
    state_.read(ranges, out);
  }
  void write(std::span<const TensorRange> ranges, std::span<const float> in) override {
    state_.write(ranges, in);
  }
  [[nodiscard]] std::vector<std::byte> inner_state(config::Precision precision) const override {
    return state_.inner_state(precision);
  }
  [[nodiscard]] Status restore_inner_state(std::span<const std::byte> bytes) override {
    return state_.restore_inner_state(bytes);
  }

  [[nodiscard]] Result<StepResult> step(std::span<const std::int32_t> tokens,
                                        double learning_rate) override {
    return guarded([&]() -> Result<StepResult> {
      StepResult result;
      std::int64_t micro_batches = 0;
      ARCH_TRY(micro_batches, accumulate(tokens, &result.loss, nullptr));
      result.tokens = static_cast<std::int64_t>(tokens.size()) / (model_.context_length + 1) *
                      model_.context_length;
      if (!std::isfinite(result.loss)) {
        result.skipped = true;
        return result;
      }
      const auto applied =
          state_.apply(learning_rate, 1.0 / static_cast<double>(micro_batches), on_torch_threads);
      result.gradient_norm = applied.gradient_norm;
      result.skipped = applied.skipped;
      return result;
    });
  }

  [[nodiscard]] Result<EvalResult> evaluate(std::span<const float> weights,
                                            std::span<const std::int32_t> tokens) override {
    return guarded([&]() -> Result<EvalResult> {
      std::int64_t sequences = 0;
      ARCH_TRY(sequences, sequence_count(tokens));
      if (!weights.empty() && static_cast<std::int64_t>(weights.size()) != state_.size())
        return fail(ErrorKind::kInvalid, "evaluate: " + std::to_string(weights.size()) +
                                             " weights for a model of " +
                                             std::to_string(state_.size()));
      const torch::NoGradGuard no_gradients;
      LlamaWeights other;
      // from_blob takes a mutable pointer; without gradients nothing writes there.
      if (!weights.empty())
        other = llama_views(model_, state_.tensors(), const_cast<float*>(weights.data()), nullptr);
      EvalResult result;
      double sum = 0;
      for (std::int64_t at = 0; at < sequences; at += micro_batch_) {
        const std::int64_t count = std::min(micro_batch_, sequences - at);
        const Batch batch = batch_of(tokens, at, count);
        const at::Tensor logits = llama_.logits(weights.empty() ? weights_ : other, batch.ids);
        sum += Llama::loss(logits, batch.targets).item<double>() * static_cast<double>(count);
      }
      result.loss = sum / static_cast<double>(sequences);
      result.tokens = sequences * model_.context_length;
      return result;
    });
  }

  [[nodiscard]] Result<std::vector<std::int32_t>> sample(std::span<const std::int32_t> prompt,
                                                         std::int64_t n, double temperature,
                                                         std::uint64_t seed) override {
    for (const std::int32_t token : prompt)
      if (token < 0 || token >= model_.vocab_size)
        return fail(ErrorKind::kInvalid,
                    "sample: token " + std::to_string(token) + " is not in the vocabulary");
    if (prompt.empty()) return fail(ErrorKind::kInvalid, "sample: the prompt is empty");
    return guarded([&]() -> Result<std::vector<std::int32_t>> {
      const torch::NoGradGuard no_gradients;
      Rng rng(seed);
      std::vector<std::int32_t> all(prompt.begin(), prompt.end());
      for (std::int64_t i = 0; i < n; ++i) all.push_back(next_token(all, temperature, rng));
      return std::vector<std::int32_t>(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                                       all.end());
    });
  }

  Result<ForwardBackward> forward_backward(std::span<const std::int32_t> tokens) {
    return guarded([&]() -> Result<ForwardBackward> {
      ForwardBackward out;
      std::int64_t micro_batches = 0;
      ARCH_TRY(micro_batches, accumulate(tokens, &out.loss, &out.logits));
      const auto gradients = state_.gradients().span();
      out.gradients.assign(gradients.begin(), gradients.end());
      for (float& value : out.gradients) value /= static_cast<float>(micro_batches);
      return out;
    });
  }

 private:
  struct Batch {
    at::Tensor ids, targets;
  };

  // libtorch reports by exceptions; they end here.
  template <class Body>
  static auto guarded(Body body) -> decltype(body()) {
    try {
      return body();
    } catch (const c10::Error& error) {
      return fail(ErrorKind::kInternal, std::string("libtorch: ") + error.what_without_backtrace());
    } catch (const std::exception& error) {
      return fail(ErrorKind::kInternal, std::string("libtorch: ") + error.what());
    }
  }

  [[nodiscard]] Result<std::int64_t> sequence_count(std::span<const std::int32_t> tokens) const {
    const auto row = static_cast<std::size_t>(model_.context_length + 1);
    if (tokens.empty() || tokens.size() % row != 0)
      return fail(ErrorKind::kInvalid, "batch of " + std::to_string(tokens.size()) +
                                           " tokens, allowed: multiples of " + std::to_string(row));
    for (const std::int32_t token : tokens)
      if (token < 0 || token >= model_.vocab_size)
        return fail(ErrorKind::kInvalid, "token " + std::to_string(token) +
                                             " is not below the vocabulary size " +
                                             std::to_string(model_.vocab_size));
    return static_cast<std::int64_t>(tokens.size() / row);
  }

  [[nodiscard]] Batch batch_of(std::span<const std::int32_t> tokens, std::int64_t first,
                               std::int64_t count) const {
    const std::int64_t row = model_.context_length + 1;
    const at::Tensor all = at::empty({count, row}, at::kLong);
    const std::int32_t* from = tokens.data() + first * row;
    std::copy(from, from + count * row, all.data_ptr<std::int64_t>());
    return {all.narrow(1, 0, row - 1), all.narrow(1, 1, row - 1).reshape({count * (row - 1)})};
  }

  // Gradients of the mean loss of every micro-batch, summed; returns how many there were.
  Result<std::int64_t> accumulate(std::span<const std::int32_t> tokens, double* loss,
                                  std::vector<float>* logits_out) {
    std::int64_t sequences = 0;
    ARCH_TRY(sequences, sequence_count(tokens));
    if (sequences > micro_batch_ && sequences % micro_batch_ != 0)
      return fail(ErrorKind::kInvalid, "step of " + std::to_string(sequences) +
                                           " sequences, allowed: multiples of inner.batchSize " +
                                           std::to_string(micro_batch_));
    std::memset(state_.gradients().data(), 0, state_.gradients().span().size_bytes());
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < sequences; at += micro_batch_) {
      const Batch batch = batch_of(tokens, at, std::min(micro_batch_, sequences - at));
      const at::Tensor logits = llama_.logits(weights_, batch.ids);
      const at::Tensor value = Llama::loss(logits, batch.targets);
      value.backward();
      sum += value.item<double>();
      ++count;
      if (logits_out != nullptr) {
        const at::Tensor plain = logits.detach().to(at::kFloat).contiguous();
        logits_out->insert(logits_out->end(), plain.data_ptr<float>(),
                           plain.data_ptr<float>() + plain.numel());
      }
    }
    *loss = sum / static_cast<double>(count);
    return count;
  }

  std::int32_t next_token(const std::vector<std::int32_t>& all, double temperature, Rng& rng) {
    const auto context = static_cast<std::size_t>(model_.context_length);
    const std::size_t begin = all.size() > context ? all.size() - context : 0;
    const auto time = static_cast<std::int64_t>(all.size() - begin);
    const at::Tensor ids = at::empty({1, time}, at::kLong);
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end(),
              ids.data_ptr<std::int64_t>());
    const at::Tensor last = llama_.logits(weights_, ids)[time - 1].to(at::kDouble);
    if (temperature <= 0) return static_cast<std::int32_t>(last.argmax().item<std::int64_t>());
    const at::Tensor odds = at::softmax(last / temperature, 0);
    double left = rng.uniform();
    const double* p = odds.data_ptr<double>();
    for (std::int64_t i = 0; i < model_.vocab_size; ++i) {
      left -= p[i];
      if (left < 0) return static_cast<std::int32_t>(i);
    }
    return static_cast<std::int32_t>(model_.vocab_size - 1);
  }

  config::ModelSpec model_;
  std::int64_t micro_batch_;
  FlatState state_;
  Llama llama_;
  LlamaWeights weights_;
};

}  // namespace

void set_torch_threads(int threads) {
  ARCH_CHECK(threads >= 1, << threads);
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
}

void change_torch_threads(int threads) {
  ARCH_CHECK(threads >= 1, << threads);
  at::set_num_threads(threads);
}

void tune_allocator() {
#ifdef M_MMAP_THRESHOLD
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

Result<std::unique_ptr<Trainer>> make_torch_trainer(const config::ModelSpec& model,
                                                    const config::InnerSpec& inner) {
  const bool whole_heads = model.head_dim > 0
                               ? model.head_dim % 2 == 0
                               : model.heads > 0 && model.hidden_size % (2 * model.heads) == 0;
  if (model.heads < 1 || !whole_heads || model.kv_heads < 1 || model.heads % model.kv_heads != 0)
    return fail(ErrorKind::kInvalid,
                "model: headDim must be even (hiddenSize an even multiple of heads where it is 0), "
                "heads a multiple of kvHeads");
  try {
    return std::make_unique<TorchTrainer>(model, inner);
  } catch (const std::exception& error) {
    return fail(ErrorKind::kInternal, std::string("libtorch: ") + error.what());
  }
}

Result<ForwardBackward> forward_backward(Trainer& trainer, std::span<const std::int32_t> tokens) {
  auto* torch_trainer = dynamic_cast<TorchTrainer*>(&trainer);
  ARCH_CHECK(torch_trainer != nullptr, << "not a TorchTrainer");
  return torch_trainer->forward_backward(tokens);
}

}  // namespace archipelago::learner
