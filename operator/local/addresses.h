#pragma once
// Pod and Service addresses of a local run: every pod has a loopback address of its own, so ports
// are the same as on Kubernetes; a Service has one that its pod takes over, so it survives the pod.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace archipelago::op {

class AddressPool {
 public:
  // Addresses 127.<second>.<third>.2-254, then those of the following seconds. Services take
  // 127.<second>.<third>.1 first and others of the pool later.
  AddressPool(int second, int third);
  // A pool whose first address nobody listens on at `port`: so several runs live on one machine.
  // Starts looking at a place given by `seed` (the run's uid).
  [[nodiscard]] static Result<AddressPool> find_free(std::string_view seed, int port);

  [[nodiscard]] std::string of_service(const std::string& name);
  [[nodiscard]] Result<std::string> take();
  void give_back(const std::string& address);

 private:
  [[nodiscard]] std::string text(int offset) const;

  int second_;
  int third_;
  std::set<int> used_;
  int next_ = 2;
  std::map<std::string, std::string> services_;
};

// Names of a Service as pods write them, longest first: name.ns.svc.cluster.local, name.ns.svc,
// name.ns, name.
[[nodiscard]] std::map<std::string, std::string> dns_names(const std::string& name,
                                                           const std::string& name_space,
                                                           const std::string& address);
// "http://islands-outer.default.svc:8470" -> "http://127.77.3.1:8470": whole host names before a
// port, path or end; a bare name only before a port.
[[nodiscard]] std::string rewrite_hosts(const std::string& text,
                                        const std::map<std::string, std::string>& addresses);
// "0.0.0.0:8471", "[::]:8471" or ":8471" as a whole value or after '=' becomes this pod's address.
[[nodiscard]] std::string rewrite_wildcards(const std::string& text, const std::string& address);
// Folders inside the container become folders of the machine, wherever a path starts in `text`.
[[nodiscard]] std::string rewrite_paths(const std::string& text,
                                        const std::map<std::string, std::string>& mounts);

}  // namespace archipelago::op
