#pragma once
// The admin port: /healthz (its own thread answers: a stopped process does not), /readyz, /statusz
// (JSON), /metrics.
#include <functional>
#include <memory>
#include <string>

#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/http/server.h"
#include "learner/exchange.h"
#include "learner/hub.h"

namespace archipelago::learner {

struct Identity {
  std::string run_id, unit, datacenter;
  Incarnation incarnation;
};

// Keys: unit, datacenter, incarnation, runId, phase (Recovering | Stepping | Waiting | Validating |
// Finished), reason, connected, epoch, globalStep, localStep, steps, tokens, loss, gradientNorm,
// learningRate, stepSeconds, tokensPerSecond, stepSecondsTotal, exchangeSecondsTotal,
// exchangeOverhead, skippedSteps, merged, excluded, bytesUp, bytesDown.
[[nodiscard]] std::string status_json(const Identity& identity, const HubStatus& status,
                                      const ExchangeCounters& counters);
[[nodiscard]] std::string phase_name(const HubStatus& status);

class Admin {
 public:
  Admin(http::Endpoint listen, Identity identity, const Hub& hub, const ExchangeCounters& counters,
        Logger log);
  [[nodiscard]] Status start();
  [[nodiscard]] int port() const { return server_.port(); }
  void stop() { server_.stop(); }

 private:
  void refresh_metrics();
  Identity identity_;
  const Hub& hub_;
  const ExchangeCounters& counters_;
  Metrics metrics_;
  http::Server server_;
};

}  // namespace archipelago::learner
