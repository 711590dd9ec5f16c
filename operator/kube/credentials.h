#pragma once
// Credentials that are replaced while the process runs: the kubelet swaps a pod's token each hour
// and a cluster's CA once in years, by renaming a link. Read again after `max_age` and on demand;
// what can't be read, or reads empty, leaves the last good one. Nothing here is ever logged.
#include <cstdint>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "operator/kube/kube_config.h"

namespace archipelago::op::kube {

struct Credentials {
  std::string bearer;  // "" : none
  std::string ca_pem, certificate_pem, key_pem;
  std::uint64_t generation = 0;  // grows when a PEM changed: connections must be made anew
};

// Thread-safe.
class CredentialStore {
 public:
  CredentialStore(CredentialSource source, Duration max_age, const Clock& clock, Logger log);

  // The first read: kInvalid or kIo names the file.
  [[nodiscard]] Status load();
  // Reads again when older than max_age.
  [[nodiscard]] Credentials current();
  // Reads now (at most once a second, so that a storm of 401s is not one of reads) and returns it.
  [[nodiscard]] Credentials refresh();

 private:
  [[nodiscard]] Status read(Credentials& into) const;  // with the lock
  void reload();                                       // with the lock

  const CredentialSource source_;
  const Duration max_age_;
  const Clock& clock_;
  const Logger log_;
  std::mutex mutex_;
  Credentials good_;
  TimePoint read_at_{};
};

}  // namespace archipelago::op::kube
