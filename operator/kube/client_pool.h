#pragma once
// A bounded number of kept connections to one API server.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/http/client.h"
#include "operator/kube/credentials.h"

namespace archipelago::op::kube {

class ClientPool {
 public:
  using Make = std::function<std::unique_ptr<http::Client>(const Credentials&)>;
  ClientPool(Make make, int limit) : make_(std::move(make)), limit_(limit < 1 ? 1 : limit) {}

  class Lease {
   public:
    Lease(ClientPool& pool, std::unique_ptr<http::Client> client, std::uint64_t generation,
          bool reading);
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    http::Client& operator*() const { return *client_; }
    http::Client* operator->() const { return client_.get(); }

   private:
    ClientPool* pool_;
    std::unique_ptr<http::Client> client_;
    std::uint64_t generation_;
  };

  // A free client with these certificates, or a new one while the limit allows; nullopt when none
  // came free before the deadline.
  [[nodiscard]] std::optional<Lease> take(const Credentials& credentials, bool reading,
                                          TimePoint deadline);
  // Ends the reads in flight, and every later one at once.
  void cancel_reading();

 private:
  void put_back(std::unique_ptr<http::Client> client, std::uint64_t generation);

  struct Free {
    std::unique_ptr<http::Client> client;
    std::uint64_t generation;
  };
  const Make make_;
  const int limit_;
  std::mutex mutex_;
  std::condition_variable free_;
  std::vector<Free> idle_;  // the last one used is the first to be used again
  std::vector<http::Client*> reading_;
  int out_ = 0;
  bool cancelled_ = false;
};

}  // namespace archipelago::op::kube
