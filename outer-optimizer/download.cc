// GET /v1/fragments/{p}?have=V: one published frame, without a copy of its payload (protocol.md
// §2.9).
#include <charconv>

#include "common/wire/frame.h"
#include "outer-optimizer/routes.h"

namespace archipelago::outer {
namespace {

// Header or trailer bytes with an owner.
http::SharedBytes own(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view(*owner);
  return {std::move(owner), view};
}

Result<http::Reply> frame_reply(Services& s, const LayoutView& layout, const Frame& frame) {
  wire::FrameHeader header;
  header.kind = frame.keyframe() ? wire::FrameKind::kKeyframe : wire::FrameKind::kDelta;
  header.codec = frame.codec;
  header.run_id = s.run_id_bytes;
  header.layout_digest = layout.digest_bytes;
  header.t = frame.version;
  header.base = frame.base;
  header.fragment = frame.fragment.value;
  if (frame.meta != nullptr) parse_frame_meta(*frame.meta, &header.members, &header.excluded);
  header.payload_bytes = frame.payload->size();
  ARCH_TRY(auto head, wire::serialize_header(header));
  const auto trailer = s.trailers.of(frame.fragment, frame.payload);
  http::Reply reply =
      http::Reply::bytes({own(std::move(head)),
                          {frame.payload, frame.payload->bytes()},
                          own(std::vector<std::byte>(trailer.begin(), trailer.end()))});
  reply.headers.emplace_back("X-Archipelago-Epoch", std::to_string(s.store.store().epoch()));
  return reply;
}

http::Reply get_fragment(Services& s, const http::Request& request) {
  const auto work = [&]() -> Result<http::Reply> {
    ARCH_TRY(const auto who, sender_of(request));
    if (who) ARCH_TRY_VOID(s.engine.known(*who));
    ARCH_TRY_VOID(check_lineage(s, request));
    const auto layout = s.engine.layout();
    if (layout == nullptr || !s.engine.frames_ready()) {
      return fail(ErrorKind::kConflict, "nothing is published yet");
    }
    ARCH_TRY(const std::int64_t p, request.int_arg(0, 0, layout->fragmentation.count() - 1));
    ARCH_TRY(const std::int64_t have, request.int_param("have", -1, std::int64_t{1} << 40));
    const auto frame =
        s.store.store().frame(FragmentId(static_cast<std::int32_t>(p)), GlobalStep(have));
    if (!frame) {
      http::Reply nothing;
      nothing.status = 204;
      return nothing;
    }
    ARCH_TRY(auto reply, frame_reply(s, *layout, *frame));
    std::uint64_t bytes = 0;
    for (const auto& part : reply.parts) bytes += part.bytes.size();
    s.engine.downlink_bytes(bytes);
    return reply;
  };
  auto reply = work();
  return reply ? std::move(*reply) : reply_of(s, reply.error());
}

}  // namespace

void add_fragment_route(http::Server& server, Services& services) {
  server.route("GET", "/v1/fragments/{}", [&services](const http::Request& request) {
    return get_fragment(services, request);
  });
}

}  // namespace archipelago::outer
