// An upload from socket to validated to stored, in the real daemon (in this process), against a
// plain cpp-httplib streamed POST of the same bytes, interleaved in one run; and against the
// codec's validation of the same bytes in memory.
//
//   upload_bench [megabytes of fp32 = 128] [repeats = 7]
//   upload_bench --benchmark_min_time=...   (ctest: does it run; small)
#include <algorithm>
#include <string_view>
#include <thread>

#include <httplib.h>

#include "bench/bench_learner.h"
#include "common/base/files.h"
#include "common/config/parse.h"
#include "outer-optimizer/daemon.h"

namespace archipelago::bench {
namespace {

// The plain way: a content reader into a reserved buffer, a content provider in 1 MiB pieces.
class PlainPost {
 public:
  explicit PlainPost(std::size_t bytes) {
    server_.set_tcp_nodelay(true);
    server_.Post("/", [this, bytes](const httplib::Request&, httplib::Response&,
                                    const httplib::ContentReader& reader) {
      std::string body;  // what is stored needs memory of its own each time, here as there
      body.reserve(bytes);
      reader([&body](const char* data, std::size_t size) {
        body.append(data, size);
        return true;
      });
      stored_.push_back(std::move(body));
    });
    const int port = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::jthread([this] { server_.listen_after_bind(); });
    client_ = std::make_unique<httplib::Client>("127.0.0.1", port);
    client_->set_tcp_nodelay(true);
    client_->set_keep_alive(true);
  }
  ~PlainPost() {
    client_.reset();
    server_.stop();
  }
  double seconds_for(std::span<const std::byte> body) {
    const double start = now();
    const auto result = client_->Post(
        "/", body.size(),
        [&](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
          return sink.write(reinterpret_cast<const char*>(body.data()) + offset,
                            std::min(length, std::size_t{1} << 20));
        },
        "application/octet-stream");
    if (!result || result->status != 200 || stored_.back().size() != body.size())
      die("plain POST failed");
    return now() - start;
  }

 private:
  httplib::Server server_;
  std::vector<std::string> stored_;
  std::jthread thread_;
  std::unique_ptr<httplib::Client> client_;
};

double validate_seconds(const diloco::Fragment& fragment, codec::Codec codec,
                        std::span<const std::byte> payload) {
  const double start = now();
  outer::PayloadValidator validator(fragment, codec);
  for (std::size_t done = 0; done < payload.size();) {
    done = std::min(payload.size(), done + (std::size_t{1} << 20));
    must(validator.advance(payload.first(done)), "validate");
  }
  return now() - start;
}

void measure(codec::Codec codec, std::int64_t elements, int repeats) {
  const TempDir folder;
  const auto layout = model(elements);
  const int units = repeats + 1;
  const auto training =
      config::parse_training(spec_text(units, units, std::string(codec::name(codec)), 2));
  if (!training) die(config::format_errors(training.error()));
  outer::Flags flags;
  flags.data_dir = folder.path();
  flags.listen = flags.admin = {"127.0.0.1", 0};
  flags.run_id = kRunId;
  const auto daemon = must(
      outer::Daemon::start(must(outer::make_options(flags, *training), "options"), Logger::null()),
      "daemon");
  std::vector<std::unique_ptr<Learner>> learners;
  for (int i = 0; i < units; ++i)
    learners.push_back(std::make_unique<Learner>(daemon->port(), i, layout));
  for (auto& learner : learners) learner->hello();
  const std::vector<float> values = random_values(layout.elements(), 3);
  const auto seed = std::as_bytes(std::span(values));
  learners[0]->put(
      0, must(wire::make_frame(learners[0]->header(0, codec::Codec::kFp32, seed.size()), seed),
              "seed"));
  for (auto& learner : learners) learner->progress(1, false);
  const auto payload = learners[0]->encode(values, codec);
  PlainPost plain(payload.size() + 4096);
  std::vector<double> ours, theirs, codec_alone;
  for (int i = 0; i < repeats; ++i) {  // the last unit keeps the round open
    auto& learner = *learners[static_cast<std::size_t>(i)];
    const auto frame =
        must(wire::make_frame(learner.header(1, codec, payload.size()), payload), "frame");
    theirs.push_back(plain.seconds_for(frame));
    const double start = now();
    learner.put(1, frame);
    ours.push_back(now() - start);
    codec_alone.push_back(validate_seconds(learner.fragment(), codec, payload));
  }
  const auto rate = [&](double s) { return static_cast<double>(payload.size()) / 1e6 / s; };
  const auto best = [](const std::vector<double>& v) {
    return *std::min_element(v.begin(), v.end());
  };
  std::printf(
      "%s, %.1f MB, MB/s median (best): upload %.0f (%.0f), plain POST %.0f (%.0f), codec alone "
      "%.0f (%.0f)\n",
      std::string(codec::name(codec)).c_str(), static_cast<double>(payload.size()) / 1e6,
      rate(median(ours)), rate(best(ours)), rate(median(theirs)), rate(best(theirs)),
      rate(median(codec_alone)), rate(best(codec_alone)));
  std::printf("  ratio to the POST %.2f (%.2f), to the slower of POST and codec %.2f (%.2f)\n",
              median(theirs) / median(ours), best(theirs) / best(ours),
              std::max(median(theirs), median(codec_alone)) / median(ours),
              std::max(best(theirs), best(codec_alone)) / best(ours));
}

}  // namespace
}  // namespace archipelago::bench

int main(int argc, char** argv) {
  double megabytes = 128;
  int repeats = 7;
  if (argc > 1 && std::string_view(argv[1]).starts_with("--")) {
    megabytes = 1;
    repeats = 2;
  } else {
    if (argc > 1) megabytes = std::max(0.1, std::atof(argv[1]));
    if (argc > 2) repeats = std::clamp(std::atoi(argv[2]), 1, 14);
  }
  const auto elements = static_cast<std::int64_t>(megabytes * 1e6 / 4);
  archipelago::bench::measure(archipelago::codec::Codec::kFp32, elements, repeats);
  archipelago::bench::measure(archipelago::codec::Codec::kInt4, elements, repeats);
  return 0;
}
