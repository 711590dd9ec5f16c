#include "operator/kube/kube_client.h"

#include <map>
#include <mutex>
#include <random>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/client_pool.h"
#include "operator/kube/credentials.h"
#include "operator/kube/kube_metrics.h"
#include "operator/kube/rate_limit.h"
#include "operator/kube/retry.h"

namespace archipelago::op {
namespace {
using kube::Credentials;
using kube::Request;
using nlohmann::json;

constexpr Duration kLongestStreamWait = seconds(60);  // for a server that asked for a pause

TimePoint now() { return SystemClock().now(); }

std::uint64_t seed_of(std::uint64_t given) {
  if (given != 0) return given;
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

// "No request of this verb and resource before": what servers ask for with Retry-After.
class Pauses {
 public:
  void note(const kube::AccessRule& rule, TimePoint until) {
    std::lock_guard lock(mutex_);
    TimePoint& at = until_[rule];
    at = std::max(at, until);
  }
  [[nodiscard]] Duration left(const kube::AccessRule& rule) const {
    std::lock_guard lock(mutex_);
    const auto it = until_.find(rule);
    if (it == until_.end()) return Duration(0);
    return std::max(Duration(0), Duration(it->second - now()));
  }

 private:
  mutable std::mutex mutex_;
  std::map<kube::AccessRule, TimePoint> until_;  // as many as there are rules
};
}  // namespace

struct KubeClient::Impl {
  Impl(KubeAccess a, KubeClientOptions o, const Clock& c, Logger l, Metrics* m, WriteGate* g)
      : access(std::move(a)),
        options(std::move(o)),
        clock(c),
        log(std::move(l)),
        registry(m),
        metrics(m),
        gate(g),
        credentials(access.credentials, options.credential_age, clock, log),
        limiter(options.qps, options.burst, options.progress_calls),
        pool(
            [this](const Credentials& k) {
              return make_client(k, options.try_timeout, options.try_timeout);
            },
            options.connections),
        rng(seed_of(options.seed)) {
    metrics.declare();
  }

  std::unique_ptr<http::Client> make_client(const Credentials& k, Duration total,
                                            Duration idle) const;
  [[nodiscard]] http::HeaderList headers(const Credentials& k) const;
  Result<http::Response> send(const Request& request, CallClass call_class);
  Result<http::Response> try_once(const Request& request, const Credentials& k, bool may_end,
                                  TimePoint deadline);
  Result<http::Response> transmit(http::Client& client, const Request& request,
                                  const Credentials& k);
  Result<http::Response> stream_once(const Request& request, const Credentials& k,
                                     const http::Sink& sink, const StreamOptions& o,
                                     const http::HeadSink& head);
  Status pause_before(const Request& request, TimePoint deadline, const std::stop_token& stop);
  [[nodiscard]] Status wait(Duration delay, const std::stop_token& stop) const;
  void note(const Request& request, const Result<http::Response>& answer) const;
  kube::RetryDecision decide(const Request& request, const Result<http::Response>& answer,
                             int number, TimePoint deadline);

  const KubeAccess access;
  const KubeClientOptions options;
  const Clock& clock;
  const Logger log;
  Metrics* const registry;
  const kube::KubeMetrics metrics;
  WriteGate* const gate;
  kube::CredentialStore credentials;
  kube::RateLimiter limiter;
  kube::ClientPool pool;
  Pauses pauses;
  std::stop_source reading;  // stopped by stop_reading()
  std::mutex rng_mutex;
  Rng rng;
  std::mutex lease_mutex;
  std::unique_ptr<http::Client> lease_client;
  Duration lease_timeout{};
  std::uint64_t lease_generation = 0;
};

std::unique_ptr<http::Client> KubeClient::Impl::make_client(const Credentials& k, Duration total,
                                                            Duration idle) const {
  http::ClientOptions o;
  o.server = access.server;
  if (access.https)
    o.tls = http::TlsOptions{k.ca_pem, k.certificate_pem, k.key_pem, access.server_name};
  o.connect_timeout = std::min<Duration>(seconds(5), total);
  o.io_timeout = idle;
  o.total_timeout = total;
  o.max_reply_bytes = options.max_reply_bytes;
  o.headers = {{"User-Agent", options.user_agent}, {"Accept", "application/json, */*"}};
  return std::make_unique<http::Client>(std::move(o));
}

http::HeaderList KubeClient::Impl::headers(const Credentials& k) const {
  if (k.bearer.empty()) return {};
  return {{"Authorization", "Bearer " + k.bearer}};
}

void KubeClient::Impl::note(const Request& request, const Result<http::Response>& answer) const {
  metrics.request(request.rule.verb, answer ? answer->status : 0);
  if (answer)
    log.debug("api call", {{"call", request.what()},
                           {"status", answer->status},
                           {"audit_id", answer->header("audit-id")}});
  else
    log.debug("api call", {{"call", request.what()}, {"error", answer.error().describe()}});
}

// The one place where a request leaves. The gate is asked as the last thing before the send; from
// there the client's own deadline bounds how late a byte of it can still be sent.
Result<http::Response> KubeClient::Impl::transmit(http::Client& client, const Request& request,
                                                  const Credentials& k) {
  Duration timeout{};
  if (request.mutating() && gate != nullptr) {
    if (!gate->check(request.what()))
      return fail(ErrorKind::kCancelled, "not sent: the lease is lost");
    timeout = gate->send_window();
  }
  auto answer = client.request(request.method, access.path_prefix + request.path, request.body,
                               request.content_type, headers(k), timeout);
  note(request, answer);
  return answer;
}

Result<http::Response> KubeClient::Impl::try_once(const Request& request, const Credentials& k,
                                                  bool may_end, TimePoint deadline) {
  auto client = pool.take(k, may_end, deadline);
  if (!client) return fail(ErrorKind::kUnavailable, "no free connection to the API server");
  return transmit(**client, request, k);
}

Status KubeClient::Impl::wait(Duration delay, const std::stop_token& stop) const {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, delay, [] { return false; });
  if (stop.stop_requested()) return fail(ErrorKind::kCancelled, "stopped");
  return {};
}

// A pause that the server asked for: waited out where the call may wait, else told to the caller.
Status KubeClient::Impl::pause_before(const Request& request, TimePoint deadline,
                                      const std::stop_token& stop) {
  const Duration left = pauses.left(request.rule);
  if (left <= Duration(0)) return {};
  if (!request.repeatable || now() + left > deadline)
    return fail(ErrorKind::kUnavailable,
                request.what() + ": not sent: the API server asked to wait " +
                    std::to_string(static_cast<int>(to_seconds(left)) + 1) + " s more");
  return wait(left, stop);
}

kube::RetryDecision KubeClient::Impl::decide(const Request& request,
                                             const Result<http::Response>& answer, int number,
                                             TimePoint deadline) {
  std::lock_guard lock(rng_mutex);
  return kube::decide_retry(request, answer, {number, deadline, now(), clock.wall()}, rng);
}

Result<http::Response> KubeClient::Impl::send(const Request& request, CallClass call_class) {
  const kube::RateLimiter::Flight flight(limiter, call_class);
  const TimePoint deadline = now() + options.call_timeout;
  // A write is not given up half-way because reading ends; an event is no loss.
  const bool keep_on = request.mutating() && call_class != CallClass::kEvent;
  const std::stop_token stop = keep_on ? std::stop_token() : reading.get_token();
  bool refreshed = false;
  Credentials k = credentials.current();
  for (int number = 1;; ++number) {
    ARCH_TRY_VOID(pause_before(request, deadline, stop));
    const auto waited = limiter.acquire(call_class, deadline, stop);
    if (!waited) return fail(waited.error().with_context(request.what()));
    metrics.rate_wait(*waited);
    auto answer = try_once(request, k, !keep_on, deadline);
    if (answer && answer->ok()) return answer;
    if (answer && answer->status == 401 && !refreshed) {
      refreshed = true;
      k = credentials.refresh();
      continue;
    }
    const kube::RetryDecision next = decide(request, answer, number, deadline);
    if (next.pause > Duration(0)) pauses.note(request.rule, now() + next.pause);
    if (!next.again) {
      if (answer) return answer;
      return fail(kube::error_of(request, answer.error()));
    }
    ARCH_TRY_VOID(wait(next.wait, stop));
    // No answer at all: the server's certificate may be of a new authority.
    k = answer ? credentials.current() : credentials.refresh();
  }
}

Result<http::Response> KubeClient::Impl::stream_once(const Request& request, const Credentials& k,
                                                     const http::Sink& sink, const StreamOptions& o,
                                                     const http::HeadSink& head) {
  const auto client = make_client(k, o.total, o.idle);
  const std::stop_callback on_stop(o.stop, [&] { client->cancel(); });
  const std::stop_callback on_end(reading.get_token(), [&] { client->cancel(); });
  auto answer = client->get_stream(access.path_prefix + request.path, headers(k), o.max_bytes, sink,
                                   o.total, head);
  note(request, answer);
  return answer;
}

KubeClient::KubeClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KubeClient::~KubeClient() { stop_reading(); }

Result<std::unique_ptr<KubeClient>> KubeClient::open(KubeAccess access, KubeClientOptions options,
                                                     const Clock& clock, Logger log,
                                                     Metrics* metrics, WriteGate* gate) {
  if (!access.https && (access.credentials.token_file != "" || !access.credentials.token.empty()))
    log.warn("credentials are sent over plain http", {{"server", access.url()}});
  auto impl = std::make_unique<Impl>(std::move(access), std::move(options), clock, std::move(log),
                                     metrics, gate);
  ARCH_TRY_VOID(impl->credentials.load());
  if (impl->access.https) {
    const Credentials k = impl->credentials.current();
    const Status usable =
        http::check_tls({k.ca_pem, k.certificate_pem, k.key_pem, impl->access.server_name},
                        impl->access.server.host);
    if (!usable) return fail(usable.error().with_context(impl->access.origin));
  }
  return std::unique_ptr<KubeClient>(new KubeClient(std::move(impl)));
}

Result<std::string> KubeClient::call_text(const Request& request, CallClass call_class) {
  ARCH_TRY(http::Response answer, impl_->send(request, call_class));
  if (!answer.ok()) return fail(kube::error_of(request, answer));
  return std::move(answer.body);
}

namespace {
Result<json> parse_reply(const Request& request, const std::string& text) {
  if (text.empty()) return json();
  json value = json::parse(text, nullptr, false);
  if (!value.is_object())
    return fail(ErrorKind::kCorrupt, request.what() + ": the answer is no JSON object");
  return value;
}
}  // namespace

Result<json> KubeClient::call(const Request& request, CallClass call_class) {
  ARCH_TRY(const std::string text, call_text(request, call_class));
  return parse_reply(request, text);
}

Result<json> KubeClient::call_once(const Request& request, Duration timeout) {
  Impl& i = *impl_;
  std::lock_guard lock(i.lease_mutex);
  Credentials k = i.credentials.current();
  Result<http::Response> answer = fail(ErrorKind::kUnavailable, "not sent");
  for (int tries = 0; tries < 2; ++tries) {
    if (!i.lease_client || i.lease_timeout != timeout || i.lease_generation != k.generation) {
      i.lease_client = i.make_client(k, timeout, timeout);
      i.lease_timeout = timeout;
      i.lease_generation = k.generation;
    }
    answer = i.lease_client->request(request.method, i.access.path_prefix + request.path,
                                     request.body, request.content_type, i.headers(k));
    i.note(request, answer);
    if (answer && answer->status != 401) break;
    k = i.credentials.refresh();
    if (!answer) break;
  }
  if (!answer) return fail(kube::error_of(request, answer.error()));
  if (!answer->ok()) return fail(kube::error_of(request, *answer));
  return parse_reply(request, answer->body);
}

Status KubeClient::stream(const Request& request, const http::Sink& sink,
                          const StreamOptions& options, const http::HeadSink& head) {
  Impl& i = *impl_;
  ARCH_TRY_VOID(i.pause_before(request, now() + kLongestStreamWait, options.stop));
  Credentials k = i.credentials.current();
  auto answer = i.stream_once(request, k, sink, options, head);
  if (answer && answer->status == 401) {
    k = i.credentials.refresh();
    answer = i.stream_once(request, k, sink, options, head);
  }
  if (!answer) {
    static_cast<void>(i.credentials.refresh());
    return fail(kube::error_of(request, answer.error()));
  }
  if (answer->ok()) return {};
  const kube::RetryDecision next = i.decide(request, answer, 1, now());
  if (next.pause > Duration(0)) i.pauses.note(request.rule, now() + next.pause);
  return fail(kube::error_of(request, *answer));
}

Result<std::string> KubeClient::stream_text(const Request& request, const StreamOptions& options) {
  std::string text;
  const http::Sink take = [&](std::span<const std::byte> bytes) -> Status {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  ARCH_TRY_VOID(stream(request, take, options));
  return text;
}

Duration KubeClient::progress_turn(bool booked) { return impl_->limiter.progress_turn(booked); }

void KubeClient::stop_reading() {
  impl_->reading.request_stop();
  impl_->pool.cancel_reading();
}

Duration KubeClient::asked_to_wait(const kube::Request& request) const {
  return impl_->pauses.left(request.rule);
}

bool KubeClient::may_write() const { return impl_->gate == nullptr || impl_->gate->open(); }

const KubeAccess& KubeClient::access() const { return impl_->access; }
const Logger& KubeClient::log() const { return impl_->log; }
Metrics* KubeClient::metrics() const { return impl_->registry; }
const Clock& KubeClient::clock() const { return impl_->clock; }

}  // namespace archipelago::op
