#include "operator/kube/kube_watch.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "operator/kube/line_splitter.h"
#include "operator/kube/watch_machine.h"

namespace archipelago::op::kube {
namespace {

class KubeWatch final : public Watch {
 public:
  KubeWatch(KubeClient& client, const Request& request, const WatchSettings& settings,
            const KubeMetrics& metrics)
      : client_(client), request_(request), settings_(settings), metrics_(metrics) {
    reader_ = std::jthread([this](std::stop_token stop) { read(stop); });
  }
  ~KubeWatch() override { reader_.request_stop(); }  // and joins

  // Waits for the head of the answer, or the end.
  [[nodiscard]] Status opened() {
    std::unique_lock lock(mutex_);
    const bool told = changed_.wait_for(lock, settings_.open, [&] { return open_ || ended_; });
    if (!told)
      return fail(ErrorKind::kTimeout,
                  request_.what() + ": no answer within " +
                      std::to_string(settings_.open / std::chrono::seconds(1)) + " s");
    if (open_ || end_ == WatchType::kGone) return {};
    return fail(error_);
  }

  [[nodiscard]] std::optional<WatchEvent> next(TimePoint deadline, std::stop_token stop) override {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!events_.empty()) {
        WatchEvent out = std::move(events_.front());
        events_.pop_front();
        changed_.notify_all();
        return out;
      }
      const TimePoint now = SystemClock().now();
      const bool due = ended_ && !told_end_;
      if (due && now >= end_at_) {
        told_end_ = true;
        WatchEvent out;
        out.type = end_;
        return out;
      }
      if (now >= deadline) return std::nullopt;
      const TimePoint until = due ? std::min(deadline, end_at_) : deadline;
      changed_.wait_until(lock, stop, until,
                          [&] { return !events_.empty() || (ended_ && !told_end_ && !due); });
    }
    return std::nullopt;
  }

 private:
  void read(const std::stop_token& stop) {
    LineSplitter splitter;
    std::uint64_t too_long = 0;
    const http::Sink sink = [&](std::span<const std::byte> bytes) -> Status {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const bool go_on =
          splitter.feed(text, [&](std::string_view line) { return take(line, stop); });
      if (splitter.skipped() > too_long) {
        too_long = splitter.skipped();
        skipped("a line that is too long");
      }
      if (!go_on) return fail(ErrorKind::kCancelled, "the watch is over");
      return {};
    };
    const http::HeadSink head = [&](const http::Response&, std::uint64_t) -> Status {
      std::lock_guard lock(mutex_);
      open_ = true;
      changed_.notify_all();
      return {};
    };
    const StreamOptions options{settings_.total, settings_.idle, std::uint64_t{1} << 60, stop};
    finish(client_.stream(request_, sink, options, head), stop);
  }

  // False: the stream is of no use any more.
  bool take(std::string_view line, const std::stop_token& stop) {
    WatchStep step = read_watch_line(settings_.kind, line, settings_.slim);
    if (step.kind == StepKind::kSkip) {
      skipped(step.why);
      return true;
    }
    std::unique_lock lock(mutex_);
    if (step.kind == StepKind::kEvent) {
      changed_.wait(lock, stop, [&] { return events_.size() < settings_.buffer; });
      if (stop.stop_requested()) return false;
      events_.push_back(std::move(step.event));
      changed_.notify_all();
      return true;
    }
    verdict_ = step.kind;
    error_ = {ErrorKind::kUnavailable, request_.what() + ": " + step.why};
    return false;
  }

  void skipped(const std::string& why) {
    metrics_.skipped(settings_.kind);
    client_.log().warn("watch: skipped " + why, {{"kind", to_string(settings_.kind)}});
  }

  void finish(const Status& result, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const char* reason = "ended";
    end_ = WatchType::kEnded;
    end_at_ = SystemClock().now();
    if (verdict_ == StepKind::kGone || (!result && result.error().kind == ErrorKind::kFenced)) {
      end_ = WatchType::kGone;
      reason = "gone";
    } else if (verdict_ == StepKind::kFailed) {
      end_at_ += settings_.failed_wait;
      reason = "error";
    } else if (!result) {
      reason = result.error().kind == ErrorKind::kTimeout ? "idle" : open_ ? "error" : "refused";
      error_ = result.error();
    }
    if (end_ != WatchType::kGone && !open_ && result)
      error_ = {ErrorKind::kUnavailable, request_.what() + ": ended before it began"};
    const std::string why = error_.message;
    ended_ = true;
    changed_.notify_all();
    lock.unlock();
    if (stop.stop_requested()) return;
    metrics_.watch_restart(settings_.kind, reason);
    client_.log().debug("watch over", {{"kind", to_string(settings_.kind)},
                                       {"reason", std::string_view(reason)},
                                       {"error", why}});
  }

  KubeClient& client_;
  const Request request_;
  const WatchSettings settings_;
  const KubeMetrics metrics_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<WatchEvent> events_;
  std::optional<StepKind> verdict_;  // of the server, in the stream
  Error error_;
  bool open_ = false;
  bool ended_ = false;
  bool told_end_ = false;
  WatchType end_ = WatchType::kEnded;
  TimePoint end_at_{};
  std::jthread reader_;  // last: it uses the others
};
}  // namespace

Result<std::unique_ptr<Watch>> open_watch(KubeClient& client, const Request& request,
                                          const WatchSettings& settings,
                                          const KubeMetrics& metrics) {
  auto watch = std::make_unique<KubeWatch>(client, request, settings, metrics);
  ARCH_TRY_VOID(watch->opened());
  return std::unique_ptr<Watch>(std::move(watch));
}

}  // namespace archipelago::op::kube
