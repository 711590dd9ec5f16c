#include "learner/exchange.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/wire/messages_json.h"

namespace archipelago::learner {

std::string layout_body(const diloco::Layout& layout, const std::string& config_json) {
  const nlohmann::json body = {{"layout", layout.to_text()},
                               {"assets", {{"config.json", config_json}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Duration Exchange::Backoff::next() {
  return backoff_delay({.base = seconds(0.1), .max = seconds(1), .factor = 2.0, .jitter = 0.3},
                       failures++, rng);
}

Exchange::Exchange(ExchangeOptions options, const FragmentMap& fragments, Hub& hub, Logger log)
    : options_(std::move(options)), fragments_(fragments), hub_(hub), log_(std::move(log)) {
  if (auto session = wire::parse_hex16(options_.hello.who.session)) session_bytes_ = *session;
  if (auto layout = wire::parse_hex32(options_.hello.layout_digest)) layout_bytes_ = *layout;
  poll_client_ = make_client(seconds(15));
  report_client_ = make_client(seconds(10));
  upload_client_ = make_client(seconds(20));
  fetch_client_ = make_client(seconds(20));
  relay_client_ = make_client(seconds(60));
}

Exchange::~Exchange() { stop(false); }

std::unique_ptr<http::Client> Exchange::make_client(Duration io_timeout) const {
  http::ClientOptions client;
  client.server = options_.outer;
  client.connect_timeout = seconds(3);
  client.io_timeout = io_timeout;
  client.total_timeout = seconds(60);
  client.max_reply_bytes = wire::kMaxReplyBytes;
  const auto& who = options_.hello.who;
  client.headers = {{"X-Archipelago-Unit", who.unit},
                    {"X-Archipelago-Incarnation", std::to_string(who.incarnation.value)},
                    {"X-Archipelago-Session", who.session}};
  if (!options_.credential.empty())
    client.headers.emplace_back("X-Archipelago-Credential", options_.credential);
  return std::make_unique<http::Client>(std::move(client));
}

void Exchange::start() {
  threads_.emplace_back([this](const std::stop_token& stop) { poll(stop); });
  threads_.emplace_back([this](const std::stop_token& stop) { report(stop); });
  threads_.emplace_back([this](const std::stop_token& stop) { upload(stop); });
  threads_.emplace_back([this](const std::stop_token& stop) { fetch(stop); });
  threads_.emplace_back([this](const std::stop_token& stop) { relay(stop); });
}

void Exchange::stop(bool say_leave, const std::function<std::vector<std::byte>()>& inner_state) {
  if (stopped_) return;
  stopped_ = true;
  for (auto& thread : threads_) thread.request_stop();
  for (auto* client :
       {&poll_client_, &report_client_, &upload_client_, &fetch_client_, &relay_client_})
    (*client)->cancel();
  threads_.clear();
  if (!say_leave || !greeted_) return;
  http::ClientOptions client;
  client.server = options_.outer;
  client.connect_timeout = seconds(1);
  client.io_timeout = seconds(1);
  client.total_timeout = seconds(2);
  if (!options_.credential.empty())
    client.headers.emplace_back("X-Archipelago-Credential", options_.credential);
  http::Client leaving(std::move(client));
  const auto reply = leaving.request("POST", "/v1/leave", wire::encode(options_.hello.who));
  const bool told = reply.has_value() && reply->ok();
  log_.info("left the run", {{"told_outer_optimizer", told}});
  if (told) leave_inner_state(reply->body, inner_state);
}

void Exchange::sleep(const std::stop_token& stop, Duration duration) {
  hub_.wait(stop, duration, [](const diloco::LearnerCore&) { return false; });
}

bool Exchange::fatal(const Error& error, bool at_hello) {
  if (error.kind == ErrorKind::kFenced) {
    hub_.end(ExitCode::kFenced, "fenced: " + error.message);
    return true;
  }
  const bool refused = error.kind == ErrorKind::kRefused || error.kind == ErrorKind::kInvalid ||
                       error.kind == ErrorKind::kUnsupported || error.kind == ErrorKind::kTooLarge;
  if (at_hello && refused) {
    hub_.end(ExitCode::kConfigRefused,
             "the outer optimizer refused this learner: " + error.message);
    return true;
  }
  return false;
}

void Exchange::adopt(const diloco::ProgressReply& reply) {
  heartbeat_ = std::clamp(std::isfinite(reply.heartbeat_seconds) ? reply.heartbeat_seconds : 1.0,
                          0.01, 10.0);
  news_ = reply.news;
  const bool seed = hub_.with_core([&](diloco::LearnerCore& core) {
    core.on_reply(reply, clock_.now());
    return core.asked_to_seed() && !core.holds_all();
  });
  // Once an epoch: the replies go on asking until the last fragment is durable.
  if (seed && seeded_epoch_ < reply.epoch && hub_.seed_values() == nullptr) hub_.request_seed();
}

Status Exchange::put_layout() {
  auto reply = poll_client_->request("PUT", "/v1/layout/" + options_.hello.layout_digest,
                                     options_.layout_body);
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail(http::error_of(*reply, "PUT /v1/layout"));
  return {};
}

Status Exchange::say_hello() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    diloco::HelloRequest request = options_.hello;
    request.standing = hub_.look([](const diloco::LearnerCore& core) { return core.standing(); });
    auto reply = poll_client_->request("POST", "/v1/hello", wire::encode(request));
    if (!reply) return fail(reply.error());
    if (!reply->ok()) return fail(http::error_of(*reply, "POST /v1/hello"));
    diloco::HelloReply hello;
    ARCH_TRY(hello, wire::parse_hello_reply(reply->body));
    if (!options_.run_id.empty() && hello.run_id != options_.run_id)
      return fail(ErrorKind::kRefused, "the outer optimizer serves run " + hello.run_id +
                                           ", this learner belongs to " + options_.run_id);
    ARCH_TRY(run_bytes_, wire::run_id_bytes(hello.run_id));
    if (hello.layout_needed) {
      ARCH_TRY_VOID(put_layout());
      continue;
    }
    greeted_ = true;
    adopt(hello.progress);
    return {};
  }
  return fail(ErrorKind::kUnavailable, "the outer optimizer asks for the layout again");
}

Status Exchange::send_progress(http::Client& client, bool at_once) {
  auto report =
      hub_.look([&](const diloco::LearnerCore& core) { return core.report(clock_.now()); });
  if (at_once) report.news = -1;
  auto reply = client.request("POST", "/v1/progress", wire::encode(report));
  if (!reply) return fail(reply.error());
  if (!reply->ok()) return fail(http::error_of(*reply, "POST /v1/progress"));
  diloco::ProgressReply news;
  ARCH_TRY(news, wire::parse_progress_reply(reply->body));
  adopt(news);
  return {};
}

void Exchange::poll(const std::stop_token& stop) {
  Backoff backoff{Rng(mix64(std::hash<std::string>{}(options_.hello.who.session)))};
  bool greeted = false;
  while (!stop.stop_requested() && !hub_.ended()) {
    const bool hello = !greeted || hello_again_.exchange(false);
    const TimePoint begin = clock_.now();
    const std::int64_t news = news_;
    const Status done = hello ? say_hello() : send_progress(*poll_client_, false);
    if (stop.stop_requested()) return;
    if (done) {
      if (!greeted) log_.info("joined the run", {{"run_id", options_.run_id}});
      greeted = true;
      backoff.failures = 0;
      hub_.set_connected(true);
      // A reply that was neither held nor new: don't spin.
      const double pause =
          std::clamp(hub_.look([](const auto& core) { return core.step_seconds(); }) / 4, 0.02,
                     std::min(1.0, heartbeat_.load()));
      const Duration took = clock_.now() - begin;
      if (news_ == news && took < seconds(pause)) sleep(stop, seconds(pause) - took);
      continue;
    }
    hub_.set_connected(false);
    if (fatal(done.error(), hello)) return;
    if (done.error().kind == ErrorKind::kNotFound) greeted = false;  // it lost us: hello again
    if (backoff.failures == 0)
      log_.warn("outer optimizer does not answer", {{"error", done.error().describe()}});
    sleep(stop, backoff.next());
  }
}

void Exchange::report(const std::stop_token& stop) {
  Backoff backoff{Rng(mix64(std::hash<std::string>{}(options_.hello.who.session) + 1))};
  while (!stop.stop_requested() && !hub_.ended()) {
    const bool due = hub_.wait(stop, seconds(1), [&](const diloco::LearnerCore& core) {
      return greeted_.load() && core.needs_report();
    });
    if (!due || stop.stop_requested()) continue;
    const Status done = send_progress(*report_client_, true);
    if (done) {
      backoff.failures = 0;
      continue;
    }
    if (fatal(done.error(), false)) return;
    if (done.error().kind == ErrorKind::kNotFound) hello_again_ = true;
    sleep(stop, backoff.next());
  }
}

void Exchange::fetch(const std::stop_token& stop) {
  Backoff backoff{Rng(mix64(std::hash<std::string>{}(options_.hello.who.session) + 2))};
  std::optional<diloco::FetchOrder> order;
  while (!stop.stop_requested() && !hub_.ended()) {
    const bool due = hub_.wait(stop, seconds(1), [&](diloco::LearnerCore& core) {
      if (!greeted_.load()) return false;
      order = core.next_fetch();
      return order.has_value();
    });
    if (!due || !order) continue;
    bool lost_base = false;
    const Status done = fetch_fragment(*order, &lost_base);
    if (done) {
      ++counters_.fetches;
      backoff.failures = 0;
      continue;
    }
    ++counters_.fetches_failed;
    hub_.with_core(
        [&](diloco::LearnerCore& core) { core.fetch_failed(order->fragment, lost_base); });
    if (stop.stop_requested() || fatal(done.error(), false)) return;
    if (backoff.failures == 0)
      log_.warn("fragment not fetched",
                {{"fragment", order->fragment}, {"error", done.error().describe()}});
    sleep(stop, backoff.next());
  }
}

void Exchange::upload(const std::stop_token& stop) {
  Backoff backoff{Rng(mix64(std::hash<std::string>{}(options_.hello.who.session) + 3))};
  std::optional<diloco::UploadOrder> order;
  while (!stop.stop_requested() && !hub_.ended()) {
    order.reset();
    if (const auto* seed = hub_.seed_values(); seed != nullptr && greeted_) {
      const Status done = upload_seed(*seed);
      if (done) {
        log_.info("seeded the run");
        seeded_epoch_ = hub_.look([](const diloco::LearnerCore& core) { return core.epoch(); });
        hub_.drop_seed();
        backoff.failures = 0;
        continue;
      }
      log_.warn("seed not uploaded", {{"error", done.error().describe()}});
      if (fatal(done.error(), false)) return;
      // No longer the seeder: another was asked, and its bytes come like everybody's.
      if (done.error().kind == ErrorKind::kConflict) hub_.drop_seed();
      sleep(stop, backoff.next());
      continue;
    }
    std::optional<diloco::RebuildOrder> base;
    const bool due = hub_.wait(stop, seconds(0.5), [&](diloco::LearnerCore& core) {
      if (!greeted_.load()) return false;
      base = core.next_rebuild();
      if (!base) order = core.next_upload();
      return base || order;
    });
    if (due && base) upload_base(*base, backoff, stop);
    if (due && order) upload_snapshot(*order, backoff, stop);
  }
}

}  // namespace archipelago::learner
