#include "learner/llama_torch.h"

#include <cmath>

#include <ATen/Parallel.h>

#include "learner/kernels.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kGrain = 64;  // rows a thread takes at least

kernels::Bf16* bf16(const at::Tensor& t) {
  return reinterpret_cast<kernels::Bf16*>(t.data_ptr<at::BFloat16>());
}
float* fp32(const at::Tensor& t) { return t.data_ptr<float>(); }

// Residual addition and RMSNorm in one pass. Inputs: h [rows, hidden] fp32, delta like h in the
// compute type or absent, weight [hidden]. Outputs: the new h, and the normalised rows in the
// compute type.
struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& h,
                               const std::optional<at::Tensor>& addend, const at::Tensor& weight,
                               double epsilon, bool half) {
    const auto eps = static_cast<float>(epsilon);
    const at::Tensor delta = addend.value_or(at::Tensor());
    const std::int64_t rows = h.size(0);
    const std::int64_t hidden = h.size(1);
    const at::Tensor sum = delta.defined() ? at::empty_like(h) : h;
    const at::Tensor out =
        at::empty({rows, hidden}, h.options().dtype(half ? at::kBFloat16 : at::kFloat));
    const at::Tensor rstd = at::empty({rows}, h.options());
    at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * hidden;
      float* sum_at = delta.defined() ? fp32(sum) + at : nullptr;
      if (half) {
        kernels::add_rms_norm(fp32(h) + at, delta.defined() ? bf16(delta) + at : nullptr,
                              fp32(weight), eps, end - begin, hidden, sum_at, bf16(out) + at,
                              fp32(rstd) + begin);
      } else {
        kernels::add_rms_norm(fp32(h) + at, delta.defined() ? fp32(delta) + at : nullptr,
                              fp32(weight), eps, end - begin, hidden, sum_at, fp32(out) + at,
                              fp32(rstd) + begin);
      }
    });
    ctx->save_for_backward({sum, weight, rstd});
    ctx->saved_data["delta"] = delta.defined();
    // An input returned as it is would become a view of itself: leave it out.
    if (!delta.defined()) return {out};
    return {sum, out};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& h = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& rstd = saved[2];
    const bool has_delta = ctx->saved_data["delta"].toBool();
    const at::Tensor grad_sum =
        has_delta && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const at::Tensor grad_out = grads[has_delta ? 1 : 0].contiguous();
    const bool half = grad_out.scalar_type() == at::kBFloat16;
    const std::int64_t rows = h.size(0);
    const std::int64_t hidden = h.size(1);
    const at::Tensor grad_h = at::empty_like(h);
    // A fixed number of partial sums, so that the weight gradient does not depend on the number of
    // threads.
    constexpr std::int64_t kParts = 16;
    const std::int64_t part = (rows + kParts - 1) / kParts;
    const at::Tensor partial = at::zeros({kParts, hidden}, h.options());
    at::parallel_for(0, kParts, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        const std::int64_t begin = p * part;
        const std::int64_t n = std::min(rows, begin + part) - begin;
        if (n <= 0) continue;
        const std::int64_t at = begin * hidden;
        const float* residual = grad_sum.defined() ? fp32(grad_sum) + at : nullptr;
        if (half) {
          kernels::rms_norm_backward(fp32(h) + at, fp32(weight), fp32(rstd) + begin,
                                     bf16(grad_out) + at, residual, n, hidden, fp32(grad_h) + at,
                                     fp32(partial) + p * hidden);
        } else {
          kernels::rms_norm_backward(fp32(h) + at, fp32(weight), fp32(rstd) + begin,
                                     fp32(grad_out) + at, residual, n, hidden, fp32(grad_h) + at,
                                     fp32(partial) + p * hidden);
        }
      }
    });
    at::Tensor grad_delta;
    if (has_delta) grad_delta = half ? grad_h.to(at::kBFloat16) : grad_h;
    return {grad_h, grad_delta, partial.sum(0), at::Tensor(), at::Tensor()};
  }
};

struct HeadShape {
  std::int64_t batch, time, heads, kv_heads, size;
  [[nodiscard]] std::int64_t width() const { return (heads + 2 * kv_heads) * size; }
};

// q, k or v as [batch, heads, time, size], a view of rows [batch·time, width].
at::Tensor heads_view(const at::Tensor& rows, const HeadShape& s, std::int64_t first,
                      std::int64_t heads) {
  const std::int64_t width = s.width();
  return rows.as_strided({s.batch, heads, s.time, s.size}, {s.time * width, s.size, width, 1},
                         rows.storage_offset() + first * s.size);
}

void rotate(const at::Tensor& rows, const HeadShape& s, const at::Tensor& cos,
            const at::Tensor& sin, float sign) {
  const kernels::RopeShape shape{s.width(), s.heads + s.kv_heads, s.size, s.time};
  at::parallel_for(0, s.batch * s.time, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (rows.scalar_type() == at::kBFloat16) {
      kernels::rope(bf16(rows), shape, fp32(cos), fp32(sin), sign, begin, end);
    } else {
      kernels::rope(fp32(rows), shape, fp32(cos), fp32(sin), sign, begin, end);
    }
  });
}

// Rotates q and k inside the fused projection's output, in place (nobody else reads it: the matrix
// multiply's backward does not need its own output), and hands out q, k, v as views. Backward
// gathers the three gradients and rotates back.
struct SplitHeads : torch::autograd::Function<SplitHeads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& cos,
                               const at::Tensor& sin, std::vector<std::int64_t> dims) {
    const HeadShape s{dims[0], dims[1], dims[2], dims[3], dims[4]};
    const at::Tensor rows = qkv.detach();
    rotate(rows, s, cos, sin, 1.0F);
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["dims"] = std::move(dims);
    return {heads_view(rows, s, 0, s.heads), heads_view(rows, s, s.heads, s.kv_heads),
            heads_view(rows, s, s.heads + s.kv_heads, s.kv_heads)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const std::vector<std::int64_t> dims = ctx->saved_data["dims"].toIntVector();
    const HeadShape s{dims[0], dims[1], dims[2], dims[3], dims[4]};
    const at::Tensor rows = at::empty({s.batch * s.time, s.width()}, grads[0].options());
    heads_view(rows, s, 0, s.heads).copy_(grads[0]);
    heads_view(rows, s, s.heads, s.kv_heads).copy_(grads[1]);
    heads_view(rows, s, s.heads + s.kv_heads, s.kv_heads).copy_(grads[2]);
    rotate(rows, s, saved[0], saved[1], -1.0F);
    return {rows, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    const std::int64_t inner = gate_up.size(1) / 2;
    const at::Tensor out = at::empty({gate_up.size(0), inner}, gate_up.options());
    at::parallel_for(0, gate_up.size(0), kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (gate_up.scalar_type() == at::kBFloat16) {
        kernels::swiglu(bf16(gate_up) + begin * 2 * inner, end - begin, inner,
                        bf16(out) + begin * inner);
      } else {
        kernels::swiglu(fp32(gate_up) + begin * 2 * inner, end - begin, inner,
                        fp32(out) + begin * inner);
      }
    });
    ctx->save_for_backward({gate_up});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor grad_out = grads[0].contiguous();
    const std::int64_t inner = gate_up.size(1) / 2;
    const at::Tensor grad = at::empty_like(gate_up);
    at::parallel_for(0, gate_up.size(0), kGrain, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t in = begin * 2 * inner;
      if (gate_up.scalar_type() == at::kBFloat16) {
        kernels::swiglu_backward(bf16(gate_up) + in, bf16(grad_out) + begin * inner, end - begin,
                                 inner, bf16(grad) + in);
      } else {
        kernels::swiglu_backward(fp32(gate_up) + in, fp32(grad_out) + begin * inner, end - begin,
                                 inner, fp32(grad) + in);
      }
    });
    return {grad};
  }
};

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

}  // namespace

LlamaWeights llama_views(const config::ModelSpec& model, const std::vector<TensorShape>& shapes,
                         float* flat, float* gradients) {
  std::size_t next = 0;
  // `count` adjacent tensors of equal row length as one matrix.
  const auto take = [&](std::size_t count) {
    const TensorShape& first = shapes.at(next);
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < count; ++i) rows += shapes.at(next + i).shape[0];
    next += count;
    std::vector<std::int64_t> dims{rows};
    if (first.shape.size() > 1) dims.push_back(first.shape[1]);
    at::Tensor view = torch::from_blob(flat + first.offset, dims, at::kFloat);
    if (gradients != nullptr) {
      view.set_requires_grad(true);
      view.mutable_grad() = torch::from_blob(gradients + first.offset, dims, at::kFloat);
    }
    return view;
  };
  LlamaWeights weights;
  weights.embed = take(1);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    LlamaLayer layer;
    layer.qkv = take(3);
    if (model.attention_bias != config::AttentionBias::kNone) layer.qkv_bias = take(3);
    layer.o = take(1);
    if (model.attention_bias == config::AttentionBias::kAll) layer.o_bias = take(1);
    if (model.qk_norm) {
      layer.q_norm = take(1);
      layer.k_norm = take(1);
    }
    layer.gate_up = take(2);
    layer.down = take(1);
    layer.input_norm = take(1);
    layer.post_norm = take(1);
    weights.layers.push_back(std::move(layer));
  }
  weights.norm = take(1);
  weights.head = model.tie_embeddings ? weights.embed : take(1);
  return weights;
}

Llama::Llama(const config::ModelSpec& model, bool bf16) : model_(model), bf16_(bf16) {
  const std::vector<double> frequencies = rope_frequencies(model.rope, model.head_size());
  const auto half = static_cast<std::int64_t>(frequencies.size());
  cos_ = at::empty({model.context_length, half}, at::kFloat);
  sin_ = at::empty({model.context_length, half}, at::kFloat);
  for (std::int64_t i = 0; i < half; ++i) {
    for (std::int64_t t = 0; t < model.context_length; ++t) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(i)];
      fp32(cos_)[t * half + i] = static_cast<float>(std::cos(angle));
      fp32(sin_)[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

at::Tensor Llama::matmul(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias) const {
  if (!bf16_) return at::linear(x, weight, optional(bias));
  return at::linear(x, weight.to(at::kBFloat16),
                    bias.defined() ? optional(bias.to(at::kBFloat16)) : std::nullopt);
}

// Queries and keys normalised head by head (Qwen3), values as they are.
at::Tensor Llama::normalise_heads(const at::Tensor& qkv, const LlamaLayer& layer) const {
  const std::int64_t size = model_.head_size();
  const auto parts = qkv.split_with_sizes(
      {model_.heads * size, model_.kv_heads * size, model_.kv_heads * size}, 1);
  const auto normed = [&](const at::Tensor& part, const at::Tensor& weight) {
    const at::Tensor heads = part.to(at::kFloat).reshape({-1, size});
    return AddRmsNorm::apply(heads, std::nullopt, weight, model_.rms_norm_eps, bf16_)
        .back()
        .view(part.sizes());
  };
  return at::cat({normed(parts[0], layer.q_norm), normed(parts[1], layer.k_norm), parts[2]}, 1);
}

at::Tensor Llama::attention(const at::Tensor& x, const LlamaLayer& layer, std::int64_t batch,
                            std::int64_t time) const {
  const std::int64_t size = model_.head_size();
  at::Tensor qkv = matmul(x, layer.qkv, layer.qkv_bias);
  if (model_.qk_norm) qkv = normalise_heads(qkv, layer);
  const auto parts = SplitHeads::apply(
      qkv, cos_, sin_, std::vector<std::int64_t>{batch, time, model_.heads, model_.kv_heads, size});
  const at::Tensor mixed = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], {}, 0.0, true, std::nullopt, model_.heads != model_.kv_heads);
  return matmul(mixed.transpose(1, 2).reshape({batch * time, model_.heads * size}), layer.o,
                layer.o_bias);
}

at::Tensor Llama::logits(const LlamaWeights& weights, const at::Tensor& ids) const {
  const std::int64_t batch = ids.size(0);
  const std::int64_t time = ids.size(1);
  at::Tensor h = at::embedding(weights.embed, ids).view({batch * time, model_.hidden_size});
  std::optional<at::Tensor> delta;
  for (const LlamaLayer& layer : weights.layers) {
    auto normed = AddRmsNorm::apply(h, delta, layer.input_norm, model_.rms_norm_eps, bf16_);
    if (normed.size() == 2) h = normed[0];
    delta = attention(normed.back(), layer, batch, time);
    normed = AddRmsNorm::apply(h, delta, layer.post_norm, model_.rms_norm_eps, bf16_);
    h = normed[0];
    delta = matmul(SwiGlu::apply(matmul(normed[1], layer.gate_up)), layer.down);
  }
  return matmul(AddRmsNorm::apply(h, delta, weights.norm, model_.rms_norm_eps, bf16_).back(),
                weights.head);
}

at::Tensor Llama::loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat), targets);
}

}  // namespace archipelago::learner
