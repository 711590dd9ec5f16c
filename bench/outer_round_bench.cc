// One outer round over loopback with P = 1, against the real daemon as a process of its own:
// encoded (stated apart), uploaded int4, validated, merged, journaled, published, fetched, applied.
//
//   outer_round_bench [parameters in millions = 34.4] [learners = 1] [rounds = 5]
//   outer_round_bench --benchmark_min_time=...   (ctest: does it run; small)
#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <string_view>
#include <sys/wait.h>
#include <thread>

#include "bench/bench_learner.h"
#include "common/base/files.h"

extern char** environ;

namespace archipelago::bench {
namespace {

class DaemonProcess {
 public:
  DaemonProcess(const std::filesystem::path& program, const std::filesystem::path& folder,
                const std::string& spec) {
    std::ofstream(folder / "spec.json") << spec;
    const std::string log = (folder / "log").string();
    std::vector<std::string> args{program.string(),
                                  "--config",
                                  (folder / "spec.json").string(),
                                  "--data-dir",
                                  (folder / "data").string(),
                                  "--run-id",
                                  kRunId,
                                  "--listen",
                                  "127.0.0.1:0",
                                  "--admin",
                                  "127.0.0.1:0"};
    std::vector<char*> argv;
    for (auto& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ) != 0)
      die("cannot start " + args[0]);
    posix_spawn_file_actions_destroy(&files);
    for (int i = 0; i < 1000 && port_ < 0; ++i) {
      std::ifstream in(log);
      for (std::string line; std::getline(in, line);) {
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (json.is_object() && json.value("msg", "") == "serving") port_ = json.value("port", -1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (port_ < 0) die("the daemon does not serve: " + read_file(log).value_or(""));
  }
  ~DaemonProcess() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] double peak_gb() const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) * 1024 / 1e9;
    return 0;
  }

 private:
  pid_t pid_ = -1;
  int port_ = -1;
};

struct Round {
  double encode = 0, upload = 0, commit = 0, apply = 0;
};

Round one_round(Learner& learner, std::int64_t t, std::span<const float> gradient,
                std::vector<float>& base) {
  Round out;
  const double a = now();
  const auto payload = learner.encode(gradient, codec::Codec::kInt4);
  const auto frame = must(
      wire::make_frame(learner.header(t, codec::Codec::kInt4, payload.size()), payload), "frame");
  out.encode = now() - a;
  learner.progress(t, false);
  const double b = now();
  learner.put(t, frame);
  out.upload = now() - b;
  while (learner.committed() < GlobalStep(t)) learner.progress(t, true);
  out.commit = now() - b - out.upload;
  learner.fetch_and_apply(t - 1, base);
  out.apply = now() - b - out.upload - out.commit;
  return out;
}

std::vector<double> journal_seconds(const std::filesystem::path& tape) {
  std::vector<double> out;
  std::ifstream in(tape);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("t", 0) > 1)
      out.push_back(json.value("journalSeconds", 0.0));
  }
  return out;
}

void run(const std::filesystem::path& program, double millions, int learners, int rounds) {
  const TempDir folder;
  const auto layout = model(static_cast<std::int64_t>(millions * 1e6));
  // No checkpoint within the measured rounds; the journal is reserved for so many.
  DaemonProcess daemon(program, folder.path(), spec_text(learners, learners, "int4", rounds + 3));
  std::vector<std::unique_ptr<Learner>> all;
  for (int i = 0; i < learners; ++i)
    all.push_back(std::make_unique<Learner>(daemon.port(), i, layout));
  // All data before the first message: a learner that is silent for long loses its turn to seed.
  const std::vector<float> base = random_values(layout.elements(), 1);
  std::vector<std::vector<float>> gradients, params;
  for (std::size_t i = 0; i < all.size(); ++i) {
    gradients.push_back(random_values(layout.elements(), 7 + i));
    params.push_back(base);
  }
  {
    const auto bytes = std::as_bytes(std::span(base));
    const auto seed =
        must(wire::make_frame(all[0]->header(0, codec::Codec::kFp32, bytes.size()), bytes), "seed");
    for (auto& learner : all) learner->hello();
    all[0]->put(0, seed);
  }
  for (auto& learner : all) learner->progress(0, false);
  std::vector<std::vector<Round>> results(all.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int t = 1; t <= rounds + 1; ++t) {
          const Round round = one_round(*all[i], t, gradients[i], params[i]);
          if (t > 1) results[i].push_back(round);  // the first touches fresh memory
        }
      });
    }
  }
  std::vector<double> total, encode, upload, commit, apply;
  for (const auto& list : results) {
    for (const Round& r : list) {
      total.push_back(r.upload + r.commit + r.apply);
      encode.push_back(r.encode);
      upload.push_back(r.upload);
      commit.push_back(r.commit);
      apply.push_back(r.apply);
    }
  }
  std::printf("parameters %.1f M, learners %d, rounds %d\n",
              static_cast<double>(layout.elements()) / 1e6, learners, rounds);
  std::printf(
      "round %.3f s (upload %.3f, merge + journal + publish %.3f, fetch + apply %.3f); encode "
      "apart %.3f s\n",
      median(total), median(upload), median(commit), median(apply), median(encode));
  std::printf("of it journal %.3f s; daemon's peak memory %.2f GB\n",
              median(journal_seconds(folder.path() / "data" / "metrics.jsonl")), daemon.peak_gb());
}

}  // namespace
}  // namespace archipelago::bench

int main(int argc, char** argv) {
  double millions = 34.4;
  int learners = 1, rounds = 5;
  if (argc > 1 && std::string_view(argv[1]).starts_with("--")) {
    millions = 0.2;
    rounds = 1;
  } else {
    if (argc > 1) millions = std::max(0.01, std::atof(argv[1]));
    if (argc > 2) learners = std::clamp(std::atoi(argv[2]), 1, 16);
    if (argc > 3) rounds = std::clamp(std::atoi(argv[3]), 1, 100);
  }
  const auto program = std::filesystem::path(argv[0]).parent_path() / "archipelago-outer-optimizer";
  archipelago::bench::run(program, millions, learners, rounds);
  return 0;
}
