#pragma once
// A learner reduced to its messages, and the daemon that it talks to, for the benchmarks of the
// outer optimizer's ports.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "common/http/client.h"
#include "common/wire/frame.h"
#include "common/wire/messages_json.h"
#include "outer-optimizer/store/payload.h"

namespace archipelago::bench {

inline constexpr const char* kRunId = "5c0e0000-0000-4000-8000-00000000000b";

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] inline void die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}
template <class T>
T must(Result<T> result, const char* what) {
  if (!result) die(std::string(what) + ": " + result.error().describe());
  return std::move(*result);
}
inline void must(const Status& status, const char* what) {
  if (!status) die(std::string(what) + ": " + status.error().describe());
}

// Tensors as a decoder has them: an embedding and many matrices.
inline diloco::Layout model(std::int64_t parameters) {
  std::vector<diloco::Tensor> tensors;
  const std::int64_t embedding = parameters / 20;
  for (int i = 0; i < 96; ++i) {
    diloco::Tensor t;
    t.name = "t" + std::to_string(i);
    t.shape = {i == 0 ? embedding : (parameters - embedding) / 95};
    t.merge_class = i == 0 ? diloco::MergeClass::kEmbedding : diloco::MergeClass::kOther;
    tensors.push_back(std::move(t));
  }
  return must(diloco::Layout::create(std::move(tensors)), "layout");
}

// P = H = 1.
inline std::string spec_text(int units, int quorum, const std::string& uplink,
                             int checkpoint_every) {
  return R"({"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining", "metadata": {"name": "bench"},
"spec": {"data": {"train": {"path": "x", "format": "text"}},
"sync": {"fragments": 1, "interval": 1, "overlap": 1, "startUnits": )" +
         std::to_string(units) + ", \"quorum\": " + std::to_string(quorum) + ", \"uplink\": \"" +
         uplink + R"("},
"budget": {"globalSteps": 1000}, "outerOptimizer": {"storage": {"size": "100Gi"}, "finishedLingerSeconds": 0,
"checkpoint": {"keep": 1, "everySteps": )" +
         std::to_string(checkpoint_every) + R"(}},
"datacenters": [{"name": "dc", "learnerUnits": )" +
         std::to_string(units) + "}]}}";
}

class Learner {
 public:
  Learner(int port, int number, const diloco::Layout& layout)
      : layout_(layout),
        fragmentation_(must(diloco::Fragmentation::balanced(layout, 1), "fragmentation")),
        who_{"dc-" + std::to_string(number), Incarnation(1),
             std::string(32, "0123456789abcdef"[number % 16])},
        control_(options(port)),
        bulk_(options(port)) {}

  [[nodiscard]] const diloco::Fragment& fragment() const { return fragmentation_[FragmentId(0)]; }
  [[nodiscard]] GlobalStep committed() const { return last_.committed; }

  void hello() {
    diloco::HelloRequest request;
    request.who = who_;
    request.datacenter = "dc";
    request.can_validate = false;
    request.layout_digest = layout_.digest().hex();
    request.dataset_sequences = 1000000;
    request.dataset_digest = "bench";
    for (int i = 0; i < 2; ++i) {
      const auto reply =
          must(wire::parse_hello_reply(ask("POST", "/v1/hello", wire::encode(request))), "hello");
      last_ = reply.progress;
      if (!reply.layout_needed) return;
      ask("PUT", "/v1/layout/" + request.layout_digest,
          nlohmann::json{{"layout", layout_.to_text()}, {"assets", nlohmann::json::object()}}
              .dump());
    }
    die("asked for the layout twice");
  }

  void progress(std::int64_t t, bool held) {
    diloco::ProgressReport report;
    report.who = who_;
    report.news = held ? last_.news : -1;
    report.phase = diloco::LearnerPhase::kStepping;
    report.local_step = LocalStep(++step_);
    report.step_seconds = 0.5;
    report.tokens = step_ * 1000;
    report.holds_all = true;
    if (t > 0) report.contributes.push_back({GlobalStep(t), 1});
    last_ = must(wire::parse_progress_reply(ask("POST", "/v1/progress", wire::encode(report))),
                 "progress");
  }

  // Header and payload of a good upload (t = 0: the seed, fp32).
  wire::FrameHeader header(std::int64_t t, codec::Codec codec, std::size_t bytes) const {
    wire::FrameHeader header;
    header.kind = t == 0 ? wire::FrameKind::kSeedKeyframe : wire::FrameKind::kUpload;
    header.codec = codec;
    header.run_id = must(wire::run_id_bytes(kRunId), "run id");
    header.layout_digest = layout_.digest().bytes;
    header.session = must(wire::parse_hex16(who_.session), "session");
    header.unit = who_.unit;
    header.incarnation = who_.incarnation;
    header.t = GlobalStep(t);
    header.base = GlobalStep(t - 1);
    header.attempt = 1;
    header.steps = header.tokens = t == 0 ? 0 : 1000;
    header.local_step = LocalStep(step_);
    header.payload_bytes = bytes;
    return header;
  }

  std::vector<std::byte> encode(std::span<const float> values, codec::Codec codec) const {
    const auto offsets = outer::payload_offsets(fragment(), codec);
    std::vector<std::byte> out(offsets.back());
    for (std::size_t i = 0; i < fragment().tensors.size(); ++i) {
      const auto& tensor = fragment().tensors[i];
      must(codec::encode(codec,
                         values.subspan(static_cast<std::size_t>(tensor.offset),
                                        static_cast<std::size_t>(tensor.elements)),
                         std::span(out).subspan(offsets[i], offsets[i + 1] - offsets[i])),
           "encode");
    }
    return out;
  }

  void put(std::int64_t t, std::span<const std::byte> frame) {
    const auto reply = must(
        bulk_.put_bytes("/v1/rounds/" + std::to_string(t) + "/upload", {}, frame, seconds(300)),
        "upload");
    if (!reply.ok()) die("upload: " + reply.body);
  }

  // The next frame behind `have`, applied to `values`.
  void fetch_and_apply(std::int64_t have, std::vector<float>& values) {
    frame_.clear();
    const auto reply =
        must(bulk_.get_stream(
                 "/v1/fragments/0?have=" + std::to_string(have), {}, std::uint64_t{1} << 33,
                 [&](std::span<const std::byte> bytes) {
                   frame_.insert(frame_.end(), bytes.begin(), bytes.end());
                   return Status();
                 },
                 seconds(300)),
             "fetch");
    if (reply.status != 200) die("fetch: status " + std::to_string(reply.status));
    const std::size_t head = must(wire::header_size(frame_), "frame");
    const auto header = must(wire::parse_header(std::span(frame_).first(head)), "frame");
    const auto offsets = outer::payload_offsets(fragment(), header.codec);
    const auto payload = std::span<const std::byte>(frame_).subspan(head, header.payload_bytes);
    for (std::size_t i = 0; i < fragment().tensors.size(); ++i) {
      const auto& tensor = fragment().tensors[i];
      const auto into = std::span(values).subspan(static_cast<std::size_t>(tensor.offset),
                                                  static_cast<std::size_t>(tensor.elements));
      const auto bytes = payload.subspan(offsets[i], offsets[i + 1] - offsets[i]);
      must(codec::validate_norm2(header.codec, bytes, into.size()), "delta");
      codec::decode_accumulate_range(header.codec, bytes, into.size(), 0, 1.0F, into);
    }
  }

 private:
  static http::ClientOptions options(int port) {
    http::ClientOptions out;
    out.server = {"127.0.0.1", port};
    out.io_timeout = seconds(120);
    out.total_timeout = seconds(300);
    return out;
  }
  std::string ask(const char* method, const std::string& path, const std::string& body) {
    auto reply = must(control_.request(method, path, body), path.c_str());
    if (!reply.ok()) die(path + ": " + reply.body);
    return std::move(reply.body);
  }

  const diloco::Layout& layout_;
  diloco::Fragmentation fragmentation_;
  diloco::UnitKey who_;
  http::Client control_, bulk_;
  diloco::ProgressReply last_;
  std::int64_t step_ = 2;
  std::vector<std::byte> frame_;
};

inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) v = static_cast<float>(rng.uniform(-1e-3, 1e-3));
  return out;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace archipelago::bench
