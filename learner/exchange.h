#pragma once
// The learner's side of the network (protocol.md §2-§6, §11): five small threads around Hub, each
// with an HTTP client of its own, because a client serialises its requests: a held progress reply
// must not delay a report, an upload not a fetch.
//
//   poll    hello; POST progress that the outer optimizer may hold until there is news
//   report  POST progress at once whenever the core has something new to say
//   upload  snapshots: encode, frame, PUT until answered; the seed
//   fetch   published fragments: GET, decode, keep
//   relay   inner optimizer state, out as a donor, in as a newcomer
#include <atomic>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/codec/codec.h"
#include "common/config/spec.h"
#include "common/diloco/layout.h"
#include "common/diloco/messages.h"
#include "common/http/client.h"
#include "common/wire/frame.h"
#include "learner/fragments.h"
#include "learner/hub.h"

namespace archipelago::learner {

struct ExchangeOptions {
  http::Endpoint outer;
  std::string credential;  // X-Archipelago-Credential; empty: none
  std::string run_id;      // must be that of the hello's answer; empty: taken from it
  diloco::HelloRequest hello;
  codec::Codec uplink = codec::Codec::kInt4;
  bool published_bf16 = false;  // published copies hold only what bf16 can
  std::string layout_text;
  std::string layout_body;  // of PUT /v1/layout/{digest}
  config::Precision recovery_precision = config::Precision::kBf16;
};

struct ExchangeCounters {
  std::atomic<std::uint64_t> bytes_up{0}, bytes_down{0};
  std::atomic<std::uint64_t> uploads{0}, uploads_failed{0}, fetches{0}, fetches_failed{0};
};

class Exchange {
 public:
  Exchange(ExchangeOptions options, const FragmentMap& fragments, Hub& hub, Logger log);
  ~Exchange();  // stops
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void start();
  // Cuts requests in flight and joins. `say_leave`: POST /v1/leave, at most two seconds; when the
  // answer asks for it, what `inner_state` gives is left behind, at most 25 seconds.
  void stop(bool say_leave, const std::function<std::vector<std::byte>()>& inner_state = {});
  [[nodiscard]] const ExchangeCounters& counters() const { return counters_; }

 private:
  struct Backoff {
    Rng rng;
    int failures = 0;
    Duration next();
  };

  std::unique_ptr<http::Client> make_client(Duration io_timeout) const;
  void poll(const std::stop_token& stop);
  void report(const std::stop_token& stop);
  void upload(const std::stop_token& stop);
  void fetch(const std::stop_token& stop);
  void relay(const std::stop_token& stop);

  [[nodiscard]] Status say_hello();
  [[nodiscard]] Status put_layout();
  // `at_once`: asks not to be held.
  [[nodiscard]] Status send_progress(http::Client& client, bool at_once);
  void adopt(const diloco::ProgressReply& reply);
  // Fenced and refused end the process; true when it does.
  bool fatal(const Error& error, bool at_hello);

  [[nodiscard]] wire::FrameHeader header(wire::FrameKind kind, codec::Codec codec) const;
  void upload_snapshot(const diloco::UploadOrder& order, Backoff& backoff,
                       const std::stop_token& stop);
  [[nodiscard]] Result<http::Response> put_frame(http::Client& client, const std::string& path,
                                                 const wire::FrameHeader& header,
                                                 std::span<const std::byte> payload,
                                                 Duration timeout,
                                                 const http::HeaderList& headers = {});
  // The event tape: what is not yet written goes beside the upload that depends on it, so that a
  // merged upload's events are on the tape (docs/tape.md).
  [[nodiscard]] http::HeaderList event_headers();
  void send_events(http::Client& client);  // all of them, now
  bool adopt_events_written(const std::string& reply);
  void upload_base(const diloco::RebuildOrder& order, Backoff& backoff,
                   const std::stop_token& stop);
  [[nodiscard]] http::HeaderList lineage_header() const;
  [[nodiscard]] Status upload_seed(const std::vector<float>& flat);
  [[nodiscard]] Status fetch_fragment(const diloco::FetchOrder& order, bool* lost_base);
  [[nodiscard]] Status adopt_frame(const diloco::FetchOrder& order, const wire::FrameHeader& header,
                                   std::span<const std::byte> payload, bool* lost_base);
  void donate(const Donation& donation);
  [[nodiscard]] Status send_inner_state(http::Client& client, const Donation& donation,
                                        Duration timeout);
  void leave_inner_state(const std::string& leave_reply,
                         const std::function<std::vector<std::byte>()>& inner_state);
  [[nodiscard]] Status fetch_inner_state(const diloco::RecoveryTask& task);
  void sleep(const std::stop_token& stop, Duration duration);

  ExchangeOptions options_;
  const FragmentMap& fragments_;
  Hub& hub_;
  Logger log_;
  SystemClock clock_;
  ExchangeCounters counters_;
  wire::Bytes16 run_bytes_{};  // set by the first hello, before any frame is made
  wire::Bytes16 session_bytes_{};
  wire::Bytes32 layout_bytes_{};
  std::atomic<bool> greeted_{false};
  std::atomic<bool> hello_again_{false};
  std::atomic<double> heartbeat_{1.0};
  std::atomic<std::int64_t> news_{-1};          // of the last reply
  std::atomic<std::int64_t> seeded_epoch_{-1};  // of the outer optimizer that took our seed
  std::unique_ptr<http::Client> poll_client_, report_client_, upload_client_, fetch_client_,
      relay_client_;
  std::vector<std::jthread> threads_;
  bool stopped_ = false;
};

// {"layout": TEXT, "assets": {"config.json": TEXT}}: the body of PUT /v1/layout/{digest}
// (protocol.md §5).
[[nodiscard]] std::string layout_body(const diloco::Layout& layout, const std::string& config_json);

}  // namespace archipelago::learner
