#include "outer-optimizer/trailer_cache.h"

#include <cstring>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace archipelago::outer {
namespace {

SharedBuffer payload(std::size_t bytes, int fill) {
  auto buffer = std::make_shared<Buffer>(bytes);
  std::memset(buffer->bytes().data(), fill, bytes);
  return buffer;
}

TrailerCache::Trailer hash_of(const SharedBuffer& payload) {
  wire::PayloadHash hash;
  hash.update(payload->bytes());
  return hash.trailer();
}

}  // namespace

TEST_CASE("a payload is hashed once, however often and by however many it is asked for") {
  TrailerCache cache;
  const auto first = payload(100'000, 1), second = payload(100'000, 2);
  CHECK(cache.of(FragmentId(0), first) == hash_of(first));
  CHECK(cache.of(FragmentId(0), second) == hash_of(second));
  CHECK(hash_of(first) != hash_of(second));
  CHECK(cache.of(FragmentId(0), first) == hash_of(first));
  CHECK(cache.hashed() == 2);

  const auto large = payload(8'000'000, 3);
  const auto expected = hash_of(large);
  std::atomic<int> right{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i)
    readers.emplace_back([&] { right += cache.of(FragmentId(1), large) == expected ? 1 : 0; });
  for (auto& reader : readers) reader.join();
  CHECK(right == 8);
  CHECK(cache.hashed() == 3);
}

TEST_CASE("a checksum is never that of bytes that were at the same address before") {
  TrailerCache cache;
  const auto pool = std::make_shared<BufferPool>();  // gives the same memory again
  for (int i = 0; i < 50; ++i) {
    auto buffer = pool->take(4096);
    std::memset(buffer->bytes().data(), i, buffer->size());
    const SharedBuffer shared = std::move(buffer);
    CHECK(cache.of(FragmentId(0), shared) == hash_of(shared));
  }
  CHECK(cache.hashed() == 50);
}

TEST_CASE("a cache of checksums keeps no payload alive and forgets the oldest") {
  TrailerCache cache;
  auto gone = payload(64, 1);
  (void)cache.of(FragmentId(0), gone);
  const std::weak_ptr<const Buffer> watch = gone;
  gone.reset();
  CHECK(watch.expired());

  std::vector<SharedBuffer> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(payload(64, i));
    (void)cache.of(FragmentId(0), held.back());
  }
  const auto hashed = cache.hashed();
  for (std::size_t i = held.size() - TrailerCache::kMaxPerFragment; i < held.size(); ++i)
    CHECK(cache.of(FragmentId(0), held[i]) == hash_of(held[i]));
  CHECK(cache.hashed() == hashed);
  CHECK(cache.of(FragmentId(0), held[0]) == hash_of(held[0]));
  CHECK(cache.hashed() == hashed + 1);
}

}  // namespace archipelago::outer
