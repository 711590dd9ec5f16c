#pragma once
// Calls to one API server: credentials that rotate, a rate limit with classes, the retry rule, the
// write gate, metrics. Everything that the operator and the command line send to Kubernetes goes
// through here.
//
// Errors of a call, by what the caller does next (kFenced: 410, the resourceVersion or continue
// token is too old):
//   kNotFound     no such object; on create: the namespace is missing or being terminated (the
//                 message says which)
//   kConflict     409: it exists already, a stale resourceVersion, another uid
//   kInvalid      400, 413, 415, 422 and whatever else repeats the same answer
//   kRefused      403; the server's message is kept, after verb and resource
//   kUnavailable  no connection, 401 after credentials were read again, 429, 5xx; retry with
//   backoff kTimeout      retry with backoff        kCancelled  stop_reading() or the destructor
//   kTooLarge     a reply beyond max_reply_bytes      kCorrupt  a reply that is no JSON object
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/result.h"
#include "common/http/client.h"
#include "operator/kube/kube_config.h"
#include "operator/kube/requests.h"
#include "operator/kube/write_gate.h"

namespace archipelago::op {

// Who goes first when the rate limit is reached. Progress takes at most a quarter of the limit, in
// turns that are booked (progress_turn), and yields to decisions; events yield to both. The lease
// is outside of it, on a connection of its own.
enum class CallClass { kDecision, kProgress, kEvent, kLease };

struct KubeClientOptions {
  std::string user_agent = "archipelago";  // "archipelago-operator/VERSION"
  double qps = 50;                         // unary calls a second; watches and streams are exempt
  double burst = 100;
  int connections = 8;                    // unary calls at once
  int progress_calls = 2;                 // of them for progress
  Duration call_timeout = seconds(30);    // one call with its retries and waits
  Duration try_timeout = seconds(15);     // one request of it
  Duration credential_age = seconds(60);  // files are looked at again after so long
  std::size_t max_reply_bytes = std::size_t{64} << 20;
  std::uint64_t seed = 0;  // of jitter; 0: random
};

struct StreamOptions {
  Duration total = seconds(24.0 * 3600);
  Duration idle = seconds(60);  // without a byte
  std::uint64_t max_bytes = std::uint64_t{1} << 50;
  std::stop_token stop;
};

// Thread-safe.
class KubeClient {
 public:
  // The gate, clock and metrics outlive the client; gate and metrics may be null. kInvalid or kIo
  // when the credentials can't be read.
  [[nodiscard]] static Result<std::unique_ptr<KubeClient>> open(KubeAccess access,
                                                                KubeClientOptions options,
                                                                const Clock& clock, Logger log,
                                                                Metrics* metrics = nullptr,
                                                                WriteGate* gate = nullptr);
  ~KubeClient();
  KubeClient(const KubeClient&) = delete;
  KubeClient& operator=(const KubeClient&) = delete;

  // A 2xx reply as JSON (an empty one as null).
  [[nodiscard]] Result<nlohmann::json> call(const kube::Request& request,
                                            CallClass call_class = CallClass::kDecision);
  // A 2xx reply as it is: logs, proxied pages.
  [[nodiscard]] Result<std::string> call_text(const kube::Request& request,
                                              CallClass call_class = CallClass::kDecision);
  // One try within `timeout`, without rate limit or retry: for the lease.
  [[nodiscard]] Result<nlohmann::json> call_once(const kube::Request& request, Duration timeout);
  // GET whose body goes to `sink` as it comes, on a connection of its own. kCancelled after a stop.
  // One retry after a 401, none after anything else. `head` gets the reply's head when it is 2xx.
  [[nodiscard]] Status stream(const kube::Request& request, const http::Sink& sink,
                              const StreamOptions& options, const http::HeadSink& head = {});
  // The same, whole: a page of a pod that is slow or large. options.max_bytes bounds it.
  [[nodiscard]] Result<std::string> stream_text(const kube::Request& request,
                                                const StreamOptions& options);

  // From any thread, for good: streams and waiting reads end with kCancelled, later ones too.
  // Writes still go: a reconcile that runs can finish.
  void stop_reading();

  // For CallClass::kProgress, before the call: zero when it may go now, else how long to wait
  // before asking again with `booked`. Never blocks.
  [[nodiscard]] Duration progress_turn(bool booked);

  // How long the API server asked to leave such calls alone; zero: it did not.
  [[nodiscard]] Duration asked_to_wait(const kube::Request& request) const;
  // Is the write gate open? For what may as well be left undone; everything else is checked at its
  // send.
  [[nodiscard]] bool may_write() const;

  [[nodiscard]] const KubeAccess& access() const;
  [[nodiscard]] const Logger& log() const;
  [[nodiscard]] Metrics* metrics() const;
  [[nodiscard]] const Clock& clock() const;

 private:
  struct Impl;
  explicit KubeClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::op
