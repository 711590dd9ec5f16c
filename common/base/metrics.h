#pragma once
// Counters, gauges and histograms of one process, exposed as Prometheus text. Passed in, never
// global. Label values come from closed sets only; create every combination at start so that it
// exposes 0.
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Registry;
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace archipelago {

class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same object, which lives as long as this registry.
  prometheus::Counter& counter(const std::string& name, const std::string& help,
                               const Labels& labels = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help,
                           const Labels& labels = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& bounds, const Labels& labels = {});
  [[nodiscard]] std::string render() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
};

}  // namespace archipelago
