#include "tests/outer-optimizer/daemon_fixture.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "outer-optimizer/store/payload.h"

namespace archipelago::outer {

DaemonOptions test_options(const std::filesystem::path& folder, std::int64_t budget) {
  const std::string text = R"(
apiVersion: archipelago.training/v1alpha1
kind: DecoupledTraining
metadata: {name: daemon-test}
spec:
  data: {train: {path: train.txt, format: text}}
  inner: {warmupSteps: 1}
  sync: {fragments: 2, interval: 2, overlap: 1, quorum: 1, startUnits: 1}
  budget: {globalSteps: )" +
                           std::to_string(budget) + R"(}
  outerOptimizer: {checkpoint: {everySteps: 4, keep: 2}, finishedLingerSeconds: 0}
  datacenters: [{name: dc, learnerUnits: 2}]
)";
  const auto training = config::parse_training(text);
  if (!training) FAIL(config::format_errors(training.error()));
  Flags flags;
  flags.data_dir = folder;
  flags.listen = {"127.0.0.1", 0};
  flags.admin = {"127.0.0.1", 0};
  flags.run_id = kRunId;
  auto options = make_options(flags, *training);
  if (!options) FAIL(options.error().message);
  options->store.threads = 1;
  options->core.rebuild_window = Duration{};  // incarnations above 1 begin runs here
  return *options;
}

diloco::Layout test_layout() {
  std::vector<diloco::Tensor> tensors;
  tensors.push_back({"embed.weight", {20, 50}, diloco::MergeClass::kEmbedding});
  tensors.push_back({"a.weight", {30, 30}, diloco::MergeClass::kOther});
  tensors.push_back({"b.weight", {20, 30}, diloco::MergeClass::kOther});
  tensors.push_back({"c.bias", {50}, diloco::MergeClass::kOther});
  tensors.push_back({"d.bias", {20}, diloco::MergeClass::kOther});
  return *diloco::Layout::create(std::move(tensors));
}

namespace {

http::ClientOptions client_options(int port) {
  http::ClientOptions options;
  options.server = {"127.0.0.1", port};
  options.total_timeout = seconds(30);
  options.io_timeout = seconds(30);
  return options;
}

http::Response must(Result<http::Response> response) {
  if (!response) FAIL(response.error().describe());
  return std::move(*response);
}

}  // namespace

FakeLearner::FakeLearner(int port, std::string unit, std::int64_t incarnation, char session_digit)
    : who{std::move(unit), Incarnation(incarnation), std::string(32, session_digit)},
      fragmentation(*diloco::Fragmentation::balanced(layout, 2)),
      client_(client_options(port)) {}

Result<diloco::HelloReply> FakeLearner::hello() {
  diloco::HelloRequest request;
  request.who = who;
  request.datacenter = "dc";
  request.can_validate = false;
  request.layout_digest = layout.digest().hex();
  request.dataset_sequences = 100000;
  request.dataset_digest = "d";
  for (int i = 0; i < 2; ++i) {
    const auto reply = must(client_.request("POST", "/v1/hello", wire::encode(request)));
    if (!reply.ok()) return fail(http::error_of(reply, "hello"));
    auto hello = wire::parse_hello_reply(reply.body);
    if (!hello || !hello->layout_needed) {
      if (hello) last = hello->progress;
      return hello;
    }
    const nlohmann::json body{{"layout", layout.to_text()},
                              {"assets", {{"config.json", "{\"model\":1}"}}}};
    const auto put =
        must(client_.request("PUT", "/v1/layout/" + request.layout_digest, body.dump()));
    if (!put.ok()) return fail(http::error_of(put, "layout"));
  }
  return fail(ErrorKind::kInternal, "asked for the layout twice");
}

std::vector<std::byte> FakeLearner::payload(std::int32_t fragment, float value,
                                            codec::Codec codec) const {
  const auto& f = fragmentation[FragmentId(fragment)];
  std::vector<std::byte> out(payload_bytes(f, codec));
  const auto offsets = payload_offsets(f, codec);
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    const std::vector<float> values(static_cast<std::size_t>(f.tensors[i].elements), value);
    const auto into = std::span(out).subspan(offsets[i], offsets[i + 1] - offsets[i]);
    if (!codec::encode(codec, values, into)) FAIL("encode");
  }
  return out;
}

wire::FrameHeader FakeLearner::upload_header(std::int64_t t, std::int64_t base) const {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kUpload;
  header.codec = codec::Codec::kInt4;
  header.run_id = *wire::run_id_bytes(kRunId);
  header.layout_digest = layout.digest().bytes;
  header.session = *wire::parse_hex16(who.session);
  header.unit = who.unit;
  header.incarnation = who.incarnation;
  header.t = GlobalStep(t);
  header.base = GlobalStep(base);
  header.fragment = fragment_of(t);
  header.attempt = 1;
  header.steps = 2;
  header.tokens = 1000;
  header.local_step = LocalStep(local_step_);
  return header;
}

http::Response FakeLearner::send(std::int64_t t, std::span<const std::byte> frame) {
  return must(
      client_.put_bytes("/v1/rounds/" + std::to_string(t) + "/upload", {}, frame, seconds(30)));
}

http::Response FakeLearner::upload(std::int64_t t, std::int64_t base, float value) {
  auto header = upload_header(t, base);
  const auto bytes = payload(header.fragment, value, header.codec);
  header.payload_bytes = bytes.size();
  return send(t, *wire::make_frame(header, bytes));
}

http::Response FakeLearner::seed_one(std::int32_t fragment, float value) {
  auto header = upload_header(0, -1);
  header.kind = wire::FrameKind::kSeedKeyframe;
  header.codec = codec::Codec::kFp32;
  header.fragment = fragment;
  header.steps = header.tokens = 0;
  const auto bytes = payload(fragment, value, header.codec);
  header.payload_bytes = bytes.size();
  return send(0, *wire::make_frame(header, bytes));
}

Status FakeLearner::seed(float value) {
  for (std::int32_t p = 0; p < fragmentation.count(); ++p) {
    const auto reply = seed_one(p, value);
    if (!reply.ok()) return fail(http::error_of(reply, "seed"));
  }
  return {};
}

Result<diloco::ProgressReply> FakeLearner::progress(std::optional<std::int64_t> t, bool at_once) {
  diloco::ProgressReport report;
  report.who = who;
  report.news = at_once ? -1 : last.news;
  report.phase = diloco::LearnerPhase::kStepping;
  report.local_step = LocalStep(++local_step_);
  report.step_seconds = 0.05;
  report.tokens = local_step_ * 500;
  report.seconds_in_steps = static_cast<double>(local_step_) * 0.05;
  report.loss = 2.5;
  report.holds_all = true;
  if (t) report.contributes.push_back({GlobalStep(*t), 1});
  const auto reply = must(client_.request("POST", "/v1/progress", wire::encode(report)));
  if (!reply.ok()) return fail(http::error_of(reply, "progress"));
  auto parsed = wire::parse_progress_reply(reply.body);
  if (parsed) last = *parsed;
  return parsed;
}

std::optional<FakeLearner::Fetched> FakeLearner::fetch(std::int32_t fragment, std::int64_t have) {
  std::vector<std::byte> frame;
  const auto reply = client_.get_stream(
      "/v1/fragments/" + std::to_string(fragment) + "?have=" + std::to_string(have), {}, 1U << 20,
      [&](std::span<const std::byte> bytes) {
        frame.insert(frame.end(), bytes.begin(), bytes.end());
        return Status();
      },
      seconds(30));
  if (!reply) FAIL(reply.error().describe());
  if (reply->status == 204) return std::nullopt;
  if (!reply->ok()) FAIL(reply->body);
  Fetched out;
  wire::FrameReader reader(
      {}, [](const wire::FrameHeader&) { return Status(); },
      [&](std::span<const std::byte> piece) {
        out.payload.insert(out.payload.end(), piece.begin(), piece.end());
        return Status();
      });
  if (auto fed = reader.feed(frame); !fed) FAIL(fed.error().describe());
  if (auto done = reader.finish(); !done) FAIL(done.error().describe());
  out.header = *reader.header();
  return out;
}

void FakeLearner::wait_committed(std::int64_t t) {
  const TimePoint end = SystemClock().now() + seconds(60);
  while (last.committed < GlobalStep(t)) {
    if (SystemClock().now() > end)
      FAIL("step " << t << " was not committed, now at " << last.committed);
    // An error here may be a daemon that starts; the deadline judges.
    (void)progress({}, false);
  }
}

void FakeLearner::run_until(std::int64_t t) {
  while (last.committed < GlobalStep(t)) {
    const std::int64_t next = last.committed.value + 1;
    CAPTURE(next);
    REQUIRE(progress(next));
    const auto reply = upload(next, base_of(next), 0.01F * static_cast<float>(next));
    CAPTURE(reply.body);
    REQUIRE(reply.status == 200);
    wait_committed(next);
  }
}

diloco::StatusDocument status_of(Daemon& daemon) {
  http::Client client(client_options(daemon.admin_port()));
  const auto reply = must(client.request("GET", "/statusz"));
  auto status = wire::parse_status(reply.body);
  if (!status) FAIL(status.error().describe());
  return *status;
}

}  // namespace archipelago::outer
