#include "operator/local/sampler.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/http/client.h"

namespace archipelago::op {

struct StatusSampler::Target {
  Target(const std::string& ip, Duration period, Duration timeout)
      : client([&] {
          http::ClientOptions options;
          options.server = {ip, kLocalAdminPort};
          options.connect_timeout = timeout;
          options.io_timeout = timeout;
          options.total_timeout = timeout;
          return options;
        }()),
        thread([this, period](std::stop_token stop) { loop(stop, period); }) {}
  ~Target() {
    thread.request_stop();
    client.cancel();
  }

  void loop(std::stop_token stop, Duration period) {
    const SystemClock clock;
    while (!stop.stop_requested()) {
      auto reply = client.request("GET", "/statusz");
      StatusAnswer next;
      next.at = clock.now();
      if (reply && reply->ok()) {
        auto document = nlohmann::json::parse(reply->body, nullptr, false);
        if (document.is_object())
          next.document = std::make_shared<const nlohmann::json>(std::move(document));
      }
      std::unique_lock lock(mutex);
      answer = std::move(next);
      wake.wait_for(lock, stop, period, [] { return false; });
    }
  }

  http::Client client;
  mutable std::mutex mutex;
  std::condition_variable_any wake;
  StatusAnswer answer;
  std::jthread thread;  // last: it uses the others
};

StatusSampler::StatusSampler(Duration period, Duration timeout)
    : period_(period), timeout_(timeout) {}
StatusSampler::~StatusSampler() = default;

void StatusSampler::follow(const std::vector<RunningPod>& pods) {
  std::erase_if(targets_, [&](const auto& target) {
    return std::none_of(pods.begin(), pods.end(),
                        [&](const RunningPod& p) { return p.uid == target.first; });
  });
  for (const auto& pod : pods) {
    if (!targets_.contains(pod.uid))
      targets_.emplace(pod.uid, std::make_unique<Target>(pod.ip, period_, timeout_));
  }
}

StatusAnswer StatusSampler::latest(const std::string& pod_uid) const {
  const auto it = targets_.find(pod_uid);
  if (it == targets_.end()) return {};
  std::lock_guard lock(it->second->mutex);
  return it->second->answer;
}

}  // namespace archipelago::op
