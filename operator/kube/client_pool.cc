#include "operator/kube/client_pool.h"

#include <algorithm>

namespace archipelago::op::kube {

ClientPool::Lease::Lease(ClientPool& pool, std::unique_ptr<http::Client> client,
                         std::uint64_t generation, bool reading)
    : pool_(&pool), client_(std::move(client)), generation_(generation) {
  if (reading) pool.reading_.push_back(client_.get());  // with the pool's lock, in take()
}

ClientPool::Lease::Lease(Lease&& other) noexcept
    : pool_(other.pool_), client_(std::move(other.client_)), generation_(other.generation_) {}

ClientPool::Lease::~Lease() {
  if (client_) pool_->put_back(std::move(client_), generation_);
}

std::optional<ClientPool::Lease> ClientPool::take(const Credentials& credentials, bool reading,
                                                  TimePoint deadline) {
  std::unique_lock lock(mutex_);
  if (!free_.wait_until(lock, deadline, [&] { return out_ < limit_; })) return std::nullopt;
  std::erase_if(idle_, [&](const Free& f) { return f.generation != credentials.generation; });
  std::unique_ptr<http::Client> client;
  if (!idle_.empty()) {
    client = std::move(idle_.back().client);
    idle_.pop_back();
  } else {
    client = make_(credentials);
  }
  if (reading && cancelled_) client->cancel();
  ++out_;
  return Lease(*this, std::move(client), credentials.generation, reading);
}

void ClientPool::put_back(std::unique_ptr<http::Client> client, std::uint64_t generation) {
  {
    std::lock_guard lock(mutex_);
    const auto removed = std::erase(reading_, client.get());
    --out_;
    if (removed > 0 && cancelled_)
      client.reset();  // a cancelled one never works again
    else
      idle_.push_back({std::move(client), generation});
  }
  free_.notify_one();
}

void ClientPool::cancel_reading() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (http::Client* client : reading_) client->cancel();
}

}  // namespace archipelago::op::kube
