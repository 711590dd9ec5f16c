#include "outer-optimizer/store/commit_record.h"

#include <array>
#include <cstdint>

#include "outer-optimizer/store/little_endian.h"

namespace archipelago::outer {
namespace {

constexpr std::size_t kCommitFixed = 48;
constexpr std::size_t kFinalFixed = 8;

}  // namespace

std::string encode_commit(const CommitHead& head) {
  std::array<std::byte, kCommitFixed> fixed{};
  put(fixed, 0, head.t.value);
  put(fixed, 8, static_cast<std::int64_t>(head.fragment.value));
  put(fixed, 16, static_cast<std::uint32_t>(head.update ? 1 : 0));
  put(fixed, 20, head.rules.step.learning_rate);
  put(fixed, 24, head.rules.step.momentum);
  put(fixed, 28, static_cast<std::uint32_t>(head.rules.step.nesterov ? 1 : 0));
  put(fixed, 32, static_cast<std::uint32_t>(head.rules.downlink));
  put(fixed, 40, static_cast<std::uint64_t>(head.meta.size()));
  std::string bytes(kCommitFixed, '\0');
  std::memcpy(bytes.data(), fixed.data(), kCommitFixed);
  return bytes + head.meta + head.core_state;
}

Result<CommitHead> decode_commit(std::string_view bytes) {
  const auto fixed = text_bytes(bytes);
  if (fixed.size() < kCommitFixed) return fail(ErrorKind::kCorrupt, "commit record is too short");
  const auto meta = get<std::uint64_t>(fixed, 40);
  if (meta > bytes.size() - kCommitFixed)
    return fail(ErrorKind::kCorrupt, "commit record: members beyond its end");
  const auto codec = get<std::uint32_t>(fixed, 32);
  if (codec > 255)
    return fail(ErrorKind::kUnsupported, "commit record: codec " + std::to_string(codec));
  CommitHead head;
  head.t = GlobalStep(get<std::int64_t>(fixed, 0));
  head.fragment = FragmentId(static_cast<std::int32_t>(get<std::int64_t>(fixed, 8)));
  head.update = get<std::uint32_t>(fixed, 16) != 0;
  head.rules.step.learning_rate = get<float>(fixed, 20);
  head.rules.step.momentum = get<float>(fixed, 24);
  head.rules.step.nesterov = get<std::uint32_t>(fixed, 28) != 0;
  ARCH_TRY(head.rules.downlink, codec::codec_from_byte(static_cast<std::uint8_t>(codec)));
  head.meta = bytes.substr(kCommitFixed, meta);
  head.core_state = bytes.substr(kCommitFixed + meta);
  return head;
}

std::string encode_final(const FinalHead& head) {
  std::string bytes(kFinalFixed, '\0');
  std::memcpy(bytes.data(), &head.version.value, kFinalFixed);
  return bytes + head.core_state;
}

Result<FinalHead> decode_final(std::string_view bytes) {
  if (bytes.size() < kFinalFixed) return fail(ErrorKind::kCorrupt, "final record is too short");
  return FinalHead{GlobalStep(get<std::int64_t>(text_bytes(bytes), 0)),
                   std::string(bytes.substr(kFinalFixed))};
}

}  // namespace archipelago::outer
