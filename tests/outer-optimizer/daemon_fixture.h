#pragma once
// A daemon in this process over a folder of its own, and learners made of plain requests.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/diloco/layout.h"
#include "common/http/client.h"
#include "common/wire/frame.h"
#include "common/wire/messages_json.h"
#include "outer-optimizer/daemon.h"

namespace archipelago::outer {

inline constexpr const char* kRunId = "5c0e0000-0000-4000-8000-000000000001";

// P = H = 2, K = 1, overlap 1, int4 both ways, two units asked for, one starts the run.
[[nodiscard]] DaemonOptions test_options(const std::filesystem::path& folder,
                                         std::int64_t budget = 6);
[[nodiscard]] diloco::Layout test_layout();  // five tensors, 2,570 elements

class FakeLearner {
 public:
  FakeLearner(int port, std::string unit, std::int64_t incarnation = 1, char session_digit = 'a');

  // hello, with the layout when it is asked for. The reply's decisions are kept in `last`.
  [[nodiscard]] Result<diloco::HelloReply> hello();
  [[nodiscard]] Status seed(float value = 0.5F);  // every fragment
  [[nodiscard]] http::Response seed_one(std::int32_t fragment, float value);
  // Stepping, holding everything, contributing to `t` when given. at_once: never held.
  [[nodiscard]] Result<diloco::ProgressReply> progress(std::optional<std::int64_t> t = {},
                                                       bool at_once = true);
  [[nodiscard]] wire::FrameHeader upload_header(std::int64_t t, std::int64_t base) const;
  [[nodiscard]] std::vector<std::byte> payload(std::int32_t fragment, float value,
                                               codec::Codec codec) const;
  [[nodiscard]] http::Response send(std::int64_t t, std::span<const std::byte> frame);
  // A good upload: every element of base - theta is `value`.
  [[nodiscard]] http::Response upload(std::int64_t t, std::int64_t base, float value = 0.01F);
  struct Fetched {
    wire::FrameHeader header;
    std::vector<std::byte> payload;
  };
  [[nodiscard]] std::optional<Fetched> fetch(std::int32_t fragment, std::int64_t have = -1);
  // hello, seed, and one good round after another until `t` is committed.
  void run_until(std::int64_t t);
  void wait_committed(std::int64_t t);

  [[nodiscard]] http::Client& client() { return client_; }
  diloco::UnitKey who;
  diloco::ProgressReply last;
  diloco::Layout layout = test_layout();
  diloco::Fragmentation fragmentation;

 private:
  http::Client client_;
  std::int64_t local_step_ = 2;
};

[[nodiscard]] inline std::int32_t fragment_of(std::int64_t t) {
  return static_cast<std::int32_t>(t % 2);
}
// The version that a round at t is based on when all went well: the last step before t with the
// same fragment.
[[nodiscard]] inline std::int64_t base_of(std::int64_t t) { return t > 2 ? t - 2 : 0; }
[[nodiscard]] diloco::StatusDocument status_of(Daemon& daemon);

}  // namespace archipelago::outer
