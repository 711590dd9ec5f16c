#include "outer-optimizer/store_thread.h"

#include <nlohmann/json.hpp>

namespace archipelago::outer {

StoreThread::StoreThread(std::unique_ptr<Store> store, Logger log)
    : store_(std::move(store)), log_(std::move(log)) {}

StoreThread::~StoreThread() { stop(); }

void StoreThread::start(std::function<void(CheckpointResult)> on_checkpoint) {
  on_checkpoint_ = std::move(on_checkpoint);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void StoreThread::stop() {
  if (!thread_.joinable()) return;
  jobs_.close();
  thread_.request_stop();
  thread_.join();
}

void StoreThread::run(const std::stop_token& stop) {
  while (true) {
    auto job = jobs_.pop_until(SystemClock().now() + std::chrono::milliseconds(100), stop);
    if (job) {
      try {
        (*job)(*store_);
      } catch (const std::exception& e) {
        log_.error("store job failed", {{"what", e.what()}});
      }
    } else if (stop.stop_requested() && jobs_.size() == 0) {
      break;
    }
    if (auto ended = store_->poll_checkpoint()) on_checkpoint_(std::move(*ended));
  }
  if (auto ended = store_->finish_checkpoint()) on_checkpoint_(std::move(*ended));
}

std::string frame_meta(const MergeJob& job) {
  nlohmann::json members = nlohmann::json::array();
  for (const auto& member : job.members) members.push_back(member.unit);
  const nlohmann::json meta{{"members", std::move(members)}, {"excluded", job.excluded}};
  return meta.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void parse_frame_meta(const std::string& meta, std::vector<std::string>* members,
                      std::vector<std::string>* excluded) {
  const auto json = nlohmann::json::parse(meta, nullptr, false);
  if (!json.is_object()) return;
  const auto read = [&](const char* key, std::vector<std::string>* out) {
    const auto it = json.find(key);
    if (it == json.end() || !it->is_array()) return;
    for (const auto& name : *it) {
      if (name.is_string()) out->push_back(name.get<std::string>());
    }
  };
  read("members", members);
  read("excluded", excluded);
}

MergeReport run_merge(Store& store, const MergeJob& job) {
  MergeReport report;
  report.t = job.t;
  if (job.fragment == diloco::kNoFragment) {
    report.status = store.persist(job.core_state);
    return report;
  }
  MergeRequest request;
  request.t = job.t;
  request.fragment = FragmentId(job.fragment);
  request.meta = frame_meta(job);
  request.core_state = job.core_state;
  for (const auto& member : job.members) {
    request.members.push_back({member.upload->payload.bytes(), member.upload->codec,
                               member.upload->counters.tokens, member.upload->counters.steps,
                               member.upload->norm2});
  }
  auto outcome = store.merge_and_commit(request);
  if (!outcome) {
    report.status = fail(outcome.error());
    return report;
  }
  report.outcome = *outcome;
  return report;
}

}  // namespace archipelago::outer
