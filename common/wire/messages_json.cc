#include "common/wire/messages_json.h"

#include "common/wire/json_fields.h"

namespace archipelago::wire {

using namespace diloco;

Result<Json> parse_object(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes)
    return fail(ErrorKind::kTooLarge, "message: " + std::to_string(text.size()) +
                                          " bytes, allowed " + std::to_string(max_bytes));
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > 16) return fail(ErrorKind::kInvalid, "message: nested deeper than 16");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return fail(ErrorKind::kInvalid, "message: not valid JSON");
  if (!json.is_object()) return fail(ErrorKind::kInvalid, "message: must be a JSON object");
  return json;
}

namespace {

const std::vector<std::pair<std::string_view, LearnerPhase>> kLearnerPhases = {
    {"recovering", LearnerPhase::kRecovering},
    {"stepping", LearnerPhase::kStepping},
    {"waiting", LearnerPhase::kWaiting},
    {"validating", LearnerPhase::kValidating}};
const std::vector<std::pair<std::string_view, RunPhase>> kRunPhases = {
    {"waiting", RunPhase::kWaiting},
    {"running", RunPhase::kRunning},
    {"finishing", RunPhase::kFinishing},
    {"finished", RunPhase::kFinished}};

template <class Enum>
std::string name_of(Enum value, const std::vector<std::pair<std::string_view, Enum>>& names) {
  for (const auto& [name, v] : names)
    if (v == value) return std::string(name);
  return "";
}

void put_key(Json& json, const UnitKey& who) {
  json["unit"] = who.unit;
  json["incarnation"] = who.incarnation.value;
  json["session"] = who.session;
}

void read_key(Fields& fields, UnitKey& who) {
  fields.text("unit", who.unit, 63);
  fields.id("incarnation", who.incarnation, 1);
  fields.text("session", who.session, 32);
  if (who.unit.empty()) fields.set_error("unit is empty");
  for (const char c : who.unit)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'))
      return fields.set_error("unit: allowed lower-case letters, digits and '-'");
  if (who.session.size() != 32) fields.set_error("session: allowed 32 hex digits");
}

template <class IdType>
Json ids(const std::vector<IdType>& values) {
  Json out = Json::array();
  for (const auto& v : values) out.push_back(v.value);
  return out;
}

Json positions(const std::vector<BlockPosition>& values) {
  Json out = Json::array();
  for (const auto& v : values) out.push_back(Json::array({v.block, v.upto}));
  return out;
}

bool three(const Json& element, std::size_t count) {
  if (!element.is_array() || element.size() != count) return false;
  for (const auto& part : element)
    if (!part.is_number_integer() || (part.is_number_integer() && !part.is_number_unsigned()))
      return false;
  return true;
}

void read_positions(Fields& fields, const char* key, std::vector<BlockPosition>& out) {
  fields.list(key, kMaxListedBlocks, [&](const Json& element) {
    if (!three(element, 2) || element[1].get<std::uint64_t>() > kSequencesPerBlock)
      return fields.set_error(std::string(key) + " must hold [block, upto <= 256]");
    out.push_back({element[0].get<std::uint64_t>(),
                   static_cast<std::uint32_t>(element[1].get<std::uint64_t>())});
  });
}

Json task(const RecoveryTask& t) { return {{"id", t.id}, {"peer", t.peer}}; }

void read_task(Fields& fields, const char* key, std::optional<RecoveryTask>& out) {
  const Json* value = fields.find(key, false);
  if (value == nullptr) return;
  RecoveryTask t;
  Fields inner(*value, fields.path(key));
  inner.text("id", t.id, 64);
  inner.text("peer", t.peer, 63);
  fields.nested(inner);
  out = t;
}

Json standing_json(const Standing& s) {
  return {{"epoch", s.epoch},
          {"lineage", s.lineage},
          {"committed", s.committed.value},
          {"leaseMark", s.lease_mark},
          {"bases", ids(s.bases)}};
}

// Absent: a peer that never heard an outer optimizer, or does not say.
void read_standing(Fields& fields, Standing& s) {
  const Json* value = fields.find("standing", false);
  if (value == nullptr) return;
  Fields inner(*value, fields.path("standing"));
  inner.integer("epoch", s.epoch, 0, kMaxEpoch);
  inner.integer("lineage", s.lineage, 0, INT64_MAX);
  inner.id("committed", s.committed, 0);
  inner.integer("leaseMark", s.lease_mark, 0, kMaxLeaseMark);
  read_ids(inner, "bases", kMaxBases, s.bases);
  for (const GlobalStep version : s.bases)
    if (version < GlobalStep(0)) inner.set_error("bases must hold versions, 0 or more");
  fields.nested(inner);
}

Json reply_json(const ProgressReply& m) {
  Json json = {{"epoch", m.epoch},
               {"news", m.news},
               {"phase", name_of(m.phase, kRunPhases)},
               {"committed", m.committed.value},
               {"versions", ids(m.versions)},
               {"freshStart", m.fresh_start},
               {"seed", m.seed},
               {"rebuild", m.rebuild},
               {"lineage", m.lineage},
               {"leaseMark", m.lease_mark},
               {"budget", m.budget.value},
               {"heartbeatSeconds", m.heartbeat_seconds}};
  Json rounds = Json::array(), outcomes = Json::array(), leases = Json::array();
  for (const auto& r : m.rounds)
    rounds.push_back(
        {{"t", r.t.value}, {"fragment", r.fragment}, {"base", r.base.value}, {"open", r.open}});
  for (const auto& o : m.outcomes) outcomes.push_back({{"t", o.t.value}, {"merged", o.merged}});
  for (const auto& l : m.leases) leases.push_back(Json::array({l.block, l.from, l.upto}));
  json["rounds"] = std::move(rounds);
  json["outcomes"] = std::move(outcomes);
  json["leases"] = std::move(leases);
  if (m.validate) json["validate"] = m.validate->value;
  if (m.donate) json["donate"] = task(*m.donate);
  if (m.recover) json["recover"] = task(*m.recover);
  return json;
}

void read_rounds(Fields& fields, ProgressReply& m) {
  fields.list("rounds", kMaxListedRounds, [&](const Json& element) {
    RoundNews r;
    Fields inner(element, fields.path("rounds[]"));
    inner.id("t", r.t, 1);
    inner.integer("fragment", r.fragment, -1, 1 << 30);
    inner.id("base", r.base, -1);
    inner.boolean("open", r.open);
    fields.nested(inner);
    m.rounds.push_back(r);
  });
  fields.list("outcomes", kMaxListedRounds, [&](const Json& element) {
    Outcome o;
    Fields inner(element, fields.path("outcomes[]"));
    inner.id("t", o.t, 1);
    inner.boolean("merged", o.merged);
    fields.nested(inner);
    m.outcomes.push_back(o);
  });
  fields.list("leases", kMaxListedBlocks, [&](const Json& element) {
    if (!three(element, 3) || element[1].get<std::uint64_t>() > element[2].get<std::uint64_t>() ||
        element[2].get<std::uint64_t>() > kSequencesPerBlock)
      return fields.set_error("leases must hold [block, from, upto <= 256]");
    m.leases.push_back({element[0].get<std::uint64_t>(), element[1].get<std::uint32_t>(),
                        element[2].get<std::uint32_t>()});
  });
}

void read_reply(Fields& fields, ProgressReply& m) {
  fields.integer("epoch", m.epoch, 0, INT64_MAX);
  fields.integer("news", m.news, -1, INT64_MAX);
  fields.choice("phase", m.phase, kRunPhases);
  fields.id("committed", m.committed, 0);
  read_ids(fields, "versions", 1 << 20, m.versions);
  fields.boolean("freshStart", m.fresh_start);
  fields.boolean("seed", m.seed);
  fields.list("rebuild", kMaxBases, [&](const Json& element) {
    if (!element.is_number_integer() || element.get<std::int64_t>() < 0 ||
        element.get<std::int64_t>() >= static_cast<std::int64_t>(kMaxBases))
      return fields.set_error("rebuild must hold fragments");
    m.rebuild.push_back(element.get<std::int32_t>());
  });
  fields.integer("lineage", m.lineage, 0, INT64_MAX, false);
  fields.integer("leaseMark", m.lease_mark, 0, kMaxLeaseMark, false);
  fields.id("budget", m.budget, 0, false);
  fields.number("heartbeatSeconds", m.heartbeat_seconds, 0.001, 3600);
  read_rounds(fields, m);
  if (fields.find("validate", false) != nullptr) {
    m.validate = GlobalStep(0);
    fields.id("validate", *m.validate, 0);
  }
  read_task(fields, "donate", m.donate);
  read_task(fields, "recover", m.recover);
}

}  // namespace

std::string encode(const UnitKey& who) {
  Json json;
  put_key(json, who);
  return dump(json);
}

std::string encode(const HelloRequest& m) {
  Json json = {{"datacenter", m.datacenter},
               {"scavenging", m.scavenging},
               {"canValidate", m.can_validate},
               {"layoutDigest", m.layout_digest},
               {"datasetSequences", m.dataset_sequences},
               {"datasetDigest", m.dataset_digest},
               {"sequencesPerStep", m.sequences_per_step},
               {"address", m.address},
               {"standing", standing_json(m.standing)}};
  put_key(json, m.who);
  return dump(json);
}

std::string encode(const HelloReply& m) {
  return dump({{"runId", m.run_id},
               {"layoutNeeded", m.layout_needed},
               {"progress", reply_json(m.progress)}});
}

std::string encode(const ProgressReply& m) { return dump(reply_json(m)); }

std::string encode(const ProgressReport& m) {
  Json json = {{"news", m.news},
               {"phase", name_of(m.phase, kLearnerPhases)},
               {"localStep", m.local_step.value},
               {"tokens", m.tokens},
               {"declines", ids(m.declines)},
               {"consumed", positions(m.consumed)},
               {"holdsAll", m.holds_all},
               {"wantsInnerState", m.wants_inner_state},
               {"recoveryFailed", m.recovery_failed},
               {"applied", m.applied.value},
               {"standing", standing_json(m.standing)}};
  put_key(json, m.who);
  put_number(json, "stepSeconds", m.step_seconds);
  put_number(json, "secondsInSteps", m.seconds_in_steps);
  put_number(json, "exchangeSeconds", m.exchange_seconds);
  put_number(json, "recoverySeconds", m.recovery_seconds);
  put_number(json, "loss", m.loss);
  Json contributes = Json::array();
  for (const auto& c : m.contributes) contributes.push_back(Json::array({c.t.value, c.attempt}));
  json["contributes"] = std::move(contributes);
  if (m.validation) {
    Json v = {{"version", m.validation->version.value},
              {"tokens", m.validation->tokens},
              {"declined", m.validation->declined}};
    put_number(v, "loss", m.validation->loss);
    json["validation"] = std::move(v);
  }
  return dump(json);
}

Result<UnitKey> parse_unit_key(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxMessageBytes));
  UnitKey who;
  Fields fields(json, "unit key");
  read_key(fields, who);
  ARCH_TRY_VOID(fields.done());
  return who;
}

Result<HelloRequest> parse_hello(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxMessageBytes));
  HelloRequest m;
  Fields fields(json, "hello");
  read_key(fields, m.who);
  fields.text("datacenter", m.datacenter, 63);
  fields.boolean("scavenging", m.scavenging);
  fields.boolean("canValidate", m.can_validate);
  fields.text("layoutDigest", m.layout_digest, 64);
  fields.integer("datasetSequences", m.dataset_sequences, 0, INT64_MAX);
  fields.text("datasetDigest", m.dataset_digest, 128);
  fields.integer("sequencesPerStep", m.sequences_per_step, 1, 1'000'000);
  fields.text("address", m.address, 255, false);
  read_standing(fields, m.standing);
  ARCH_TRY_VOID(fields.done());
  return m;
}

Result<HelloReply> parse_hello_reply(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxReplyBytes));
  HelloReply m;
  Fields fields(json, "hello reply");
  fields.text("runId", m.run_id, 128);
  fields.boolean("layoutNeeded", m.layout_needed);
  if (const Json* progress = fields.find("progress", true)) {
    Fields inner(*progress, "hello reply.progress");
    read_reply(inner, m.progress);
    fields.nested(inner);
  }
  ARCH_TRY_VOID(fields.done());
  return m;
}

Result<ProgressReply> parse_progress_reply(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxReplyBytes));
  ProgressReply m;
  Fields fields(json, "progress reply");
  read_reply(fields, m);
  ARCH_TRY_VOID(fields.done());
  return m;
}

namespace {
void read_validation(Fields& fields, ProgressReport& m) {
  const Json* value = fields.find("validation", false);
  if (value == nullptr) return;
  ValidationReport v;
  Fields inner(*value, "progress.validation");
  inner.id("version", v.version, 0);
  inner.integer("tokens", v.tokens, 0, INT64_MAX);
  inner.boolean("declined", v.declined);
  inner.number("loss", v.loss);
  fields.nested(inner);
  m.validation = v;
}
}  // namespace

Result<ProgressReport> parse_progress(std::string_view text) {
  ARCH_TRY(const Json json, parse_object(text, kMaxMessageBytes));
  ProgressReport m;
  Fields fields(json, "progress");
  read_key(fields, m.who);
  fields.integer("news", m.news, -1, INT64_MAX);
  fields.choice("phase", m.phase, kLearnerPhases);
  fields.id("localStep", m.local_step, 0);
  fields.integer("tokens", m.tokens, 0, INT64_MAX);
  fields.number("stepSeconds", m.step_seconds, 0, 1e7);
  fields.number("secondsInSteps", m.seconds_in_steps, 0, 1e12);
  fields.number("exchangeSeconds", m.exchange_seconds, 0, 1e12);
  fields.number("recoverySeconds", m.recovery_seconds, 0, 1e9);
  fields.number("loss", m.loss);
  fields.list("contributes", kMaxListedRounds, [&](const Json& element) {
    if (!three(element, 2) || element[1].get<std::uint64_t>() > 1'000'000)
      return fields.set_error("contributes must hold [t, attempt]");
    m.contributes.push_back(
        {GlobalStep(element[0].get<std::int64_t>()), element[1].get<std::int32_t>()});
  });
  read_ids(fields, "declines", kMaxListedRounds, m.declines);
  read_positions(fields, "consumed", m.consumed);
  fields.boolean("holdsAll", m.holds_all);
  fields.boolean("wantsInnerState", m.wants_inner_state);
  fields.text("recoveryFailed", m.recovery_failed, 64, false);
  fields.id("applied", m.applied, 0, false);
  read_standing(fields, m.standing);
  read_validation(fields, m);
  ARCH_TRY_VOID(fields.done());
  return m;
}

}  // namespace archipelago::wire
