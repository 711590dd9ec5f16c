#include "operator/app/options.h"

#include <array>
#include <cmath>

namespace archipelago::op {
namespace {

std::string show(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

Status in_range(const char* flag, double value, double min, double max) {
  if (std::isfinite(value) && value >= min && value <= max) return {};
  return fail(ErrorKind::kInvalid, std::string(flag) + ": " + show(value) +
                                       " given, allowed: " + show(min) + " to " + show(max));
}

Status check_numbers(const OperatorFlags& f) {
  const struct {
    const char* flag;
    double value, min, max;
  } rows[] = {{"--api-qps", f.api_qps, 0.1, 100'000},
              {"--api-burst", f.api_burst, 1, 100'000},
              {"--workers", static_cast<double>(f.workers), 1, 256},
              {"--lease-duration", f.lease_seconds, 1, 3600},
              {"--renew-deadline", f.renew_deadline_seconds, 0.5, 3600},
              {"--retry-period", f.retry_seconds, 0.1, 3600},
              {"--poll-interval", f.poll_seconds, 0.1, 3600}};
  for (const auto& row : rows) ARCH_TRY_VOID(in_range(row.flag, row.value, row.min, row.max));
  return {};
}

LeaderOptions leader_options(const OperatorFlags& f) {
  LeaderOptions out;
  out.name = f.lease_name;
  out.name_space = f.lease_namespace;
  out.lease = seconds(f.lease_seconds);
  out.renew_deadline = seconds(f.renew_deadline_seconds);
  out.retry = seconds(f.retry_seconds);
  return out;
}

Result<ReachPods> parse_reach(const std::string& text) {
  if (text == "auto") return ReachPods::kAuto;
  if (text == "direct") return ReachPods::kDirect;
  if (text == "proxy") return ReachPods::kProxy;
  return fail(ErrorKind::kInvalid,
              "--reach-pods: '" + text + "' given, allowed: auto, direct, proxy");
}

}  // namespace

Result<OperatorOptions> read_operator_options(const OperatorFlags& flags) {
  OperatorOptions out;
  out.flags = flags;
  ARCH_TRY_VOID(check_numbers(flags));
  out.leader = leader_options(flags);
  ARCH_TRY_VOID(check_lease_times(out.leader));
  if (!parse_log_level(flags.log_level, &out.log_level))
    return fail(ErrorKind::kInvalid,
                "--log-level: '" + flags.log_level + "' given, allowed: debug, info, warn, error");
  ARCH_TRY(out.reach, parse_reach(flags.reach_pods));
  auto listen = http::parse_endpoint(flags.listen, "::");
  if (!listen) return fail(listen.error().with_context("--listen"));
  out.listen = *listen;
  if (!flags.outer_address.empty()) {
    auto address = http::parse_endpoint(flags.outer_address);
    if (!address) return fail(address.error().with_context("--outer-optimizer-address"));
    out.outer_address = *address;
  }
  out.controller.name_space = flags.name_space;
  out.controller.workers = flags.workers;
  out.controller.poll_interval = seconds(flags.poll_seconds);
  if (!flags.learner_image.empty()) out.controller.plan.learner_image = flags.learner_image;
  if (!flags.outer_image.empty()) out.controller.plan.outer_image = flags.outer_image;
  return out;
}

}  // namespace archipelago::op
