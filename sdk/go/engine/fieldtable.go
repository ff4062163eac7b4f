// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// buildFieldSpecs is the reference of settings: path, type, default, bounds, one line each.
func buildFieldSpecs() (t [numFields]FieldSpec) {
	t[Description] = text("description", "What the calls under this scope are for.").own()
	t[Public] = flag("public", false, "Browsers may see the merged policy of this endpoint.").own().levels(LevelEndpoint, LevelEndpoint)
	t[Observe] = flag("observe", false, "Decide, count and trace, but change nothing.")

	t[MatchHTTPMethod] = text("match.http.method", "HTTP method of the endpoint; empty: any.").own().levels(LevelEndpoint, LevelEndpoint)
	t[MatchHTTPHost] = text("match.http.host", "Host, without port, that calls go to.").own().levels(LevelNamespace, LevelEndpoint)
	t[MatchHTTPPath] = text("match.http.path", "Path pattern as in Go's net/http.ServeMux.").own().levels(LevelEndpoint, LevelEndpoint)
	t[MatchGRPCMethod] = text("match.grpc.method", "Full gRPC method, or /pkg.Service/* for all of a service.").own().levels(LevelService, LevelEndpoint)

	t[MaxAttempts] = integer("maxAttempts", 3, 1, 10, "Sends of one call, the first included.")
	t[BackoffBase] = duration("backoff.base", 200*time.Millisecond, time.Millisecond, 5*time.Minute, "Wait before the first retry.")
	t[BackoffMax] = duration("backoff.max", 2*time.Second, time.Millisecond, 5*time.Minute, "Cap of every wait; at least backoff.base.")
	t[BackoffMultiplier] = decimal("backoff.multiplier", 2, 1, 10, "Growth of the wait per retry.")
	t[BackoffJitter] = enum("backoff.jitter", "full", jitterWords, "Randomness of the wait.")
	t[TimeoutsAttempt] = duration("timeouts.attempt", 0, time.Millisecond, time.Hour, "Bound of each attempt; none by default.").noDefault()
	t[TimeoutsOverall] = duration("timeouts.overall", 0, time.Millisecond, time.Hour, "Bound of all attempts and waits; none by default. The caller's deadline wins if sooner.").noDefault()

	t[RetryOnHTTP] = set("retryOn.http", []string{"429", "502", "503", "504"}, nil, "Statuses to retry: numbers, or 5xx.")
	t[RetryOnGRPC] = set("retryOn.grpc", []string{"unavailable"}, grpcRetryable, "gRPC codes to retry.")
	t[RetryOnNetwork] = set("retryOn.network", []string{"connect", "reset"}, networkErrors, "Network failures to retry; connect means that nothing was sent.")

	t[RetryAfterHonor] = flag("retryAfter.honor", true, "Obey the wait that the server asks for.")
	t[RetryAfterMax] = duration("retryAfter.max", 20*time.Second, time.Millisecond, time.Hour, "The server asks for more: the call ends.")
	t[RetryAfterJitter] = ratio("retryAfter.jitter", 0.1, "Share added to the server's wait at most, never subtracted.")

	t[IdempotencyMethods] = set("idempotency.methods", []string{"DELETE", "GET", "HEAD", "OPTIONS", "PUT"}, nil, "Methods that are safe to repeat.")
	t[IdempotencyKeyEnabled] = flag("idempotency.key.enabled", false, "A key makes a call repeatable; on when the block is set.")
	t[IdempotencyKeyHeader] = text("idempotency.key.header", "Header that carries the key.").def(Text("Idempotency-Key"))
	t[IdempotencyKeyAuto] = flag("idempotency.key.auto", false, "Make one key per call when the caller gives none.")
	t[IdempotencyKeyFormat] = enum("idempotency.key.format", "raw", []string{"raw", "quoted"}, "How the key is written in the header.")
	t[IdempotencyKeyRemembered] = duration("idempotency.key.remembered", 24*time.Hour, time.Second, 720*time.Hour, "How long the service keeps keys.")
	t[IdempotencyOtherwise] = enum("idempotency.otherwise", "only-if-not-sent", []string{"never", "only-if-not-sent"}, "Rule for calls that are neither idempotent nor keyed.")

	t[BudgetRatio] = ratio("budget.ratio", 0.10, "Retries per call over budget.window.")
	t[BudgetWindow] = duration("budget.window", 10*time.Second, time.Second, time.Minute, "Sliding window of the budget.")
	t[BudgetMinRetriesPerSecond] = decimal("budget.minRetriesPerSecond", 0.2, 0, 1000, "Floor per instance, so that quiet services can still retry.")
	t[BudgetTokensEnabled] = flag("budget.tokens.enabled", false, "Token bucket beside the ratio; on when the block is set.")
	t[BudgetTokensCapacity] = decimal("budget.tokens.capacity", 20, 0.001, 1_000_000, "Size of the bucket; it starts full.")
	t[BudgetTokensRefillPerSecond] = decimal("budget.tokens.refillPerSecond", 0, 0, 1_000_000, "Tokens that come back per second.")
	t[BudgetTokensSuccessCredit] = decimal("budget.tokens.successCredit", 0.1, 0, 1_000_000, "Tokens for a success on the first attempt.")
	t[BudgetTokensRetryCost] = decimal("budget.tokens.retryCost", 1, 0, 1_000_000, "Tokens that a retry costs.")
	t[BudgetSuccessGateEnabled] = flag("budget.successGate.enabled", true, "No retries while too few of the last calls succeeded.")
	t[BudgetSuccessGateWindow] = integer("budget.successGate.window", 100, 10, 1000, "Calls that are looked at.")
	t[BudgetSuccessGateMinSuccessRate] = ratio("budget.successGate.minSuccessRate", 0.90, "Least share of them that must have succeeded.")
	t[BudgetSuccessGateMinCalls] = integer("budget.successGate.minCalls", 20, 1, 1000, "The gate stays open while fewer are known.")
	t[BudgetSuccessGateMaxAge] = duration("budget.successGate.maxAge", time.Minute, time.Second, time.Hour, "Older calls are ignored.")
	t[BudgetScope] = enum("budget.scope", "endpoint", []string{"endpoint", "service"}, "One bucket per endpoint, or one for all endpoints of the service on an instance.").levels(LevelGlobal, LevelService)

	t[BreakerEnabled] = flag("breaker.enabled", true, "The breaker acts as soon as a rule is on.")
	t[BreakerPer] = enum("breaker.per", "endpoint", []string{"endpoint", "host"}, "One breaker per endpoint, or per endpoint and host (1,000 hosts at most, the one not called for longest goes).")
	t[BreakerConsecutiveEnabled] = flag("breaker.consecutive.enabled", false, "Trip on failed attempts in a row; on when the block is set.")
	t[BreakerConsecutiveFailures] = integer("breaker.consecutive.failures", 5, 1, 100, "Failed attempts in a row.")
	t[BreakerConsecutiveOpenFor] = duration("breaker.consecutive.openFor", 30*time.Second, time.Second, 10*time.Minute, "Time from opening to the first probe.")
	t[BreakerRatioEnabled] = flag("breaker.ratio.enabled", false, "Trip on the failed share; on when the block is set.")
	t[BreakerRatioFailures] = ratio("breaker.ratio.failures", 0.5, "Failed share that trips.").least(1)
	t[BreakerRatioWindow] = duration("breaker.ratio.window", 10*time.Second, time.Second, 10*time.Minute, "Sliding window of the rule.")
	t[BreakerRatioMinCalls] = integer("breaker.ratio.minCalls", 20, 5, 1_000_000, "The rule waits for this many attempts in the window.")
	t[BreakerRatioOpenFor] = duration("breaker.ratio.openFor", 10*time.Second, time.Second, 10*time.Minute, "Time from opening to the first probe.")
	t[BreakerSlowEnabled] = flag("breaker.slow.enabled", false, "Trip on the slow share; on when the block is set.")
	t[BreakerSlowLongerThan] = duration("breaker.slow.longerThan", time.Second, time.Millisecond, time.Hour, "An attempt that takes longer is slow.")
	t[BreakerSlowRatio] = ratio("breaker.slow.ratio", 0.5, "Slow share that trips.").least(1)
	t[BreakerSlowWindow] = duration("breaker.slow.window", 10*time.Second, time.Second, 10*time.Minute, "Sliding window of the rule.")
	t[BreakerSlowMinCalls] = integer("breaker.slow.minCalls", 20, 5, 1_000_000, "The rule waits for this many attempts in the window.")
	t[BreakerSlowOpenFor] = duration("breaker.slow.openFor", 10*time.Second, time.Second, 10*time.Minute, "Time from opening to the first probe.")
	t[BreakerHalfOpenProbes] = integer("breaker.halfOpen.probes", 3, 1, 100, "Probes at once while half-open.")
	t[BreakerHalfOpenCloseAfter] = integer("breaker.halfOpen.closeAfter", 3, 1, 100, "Successful probes that close; at most probes.")
	t[BreakerHalfOpenProbeTimeout] = duration("breaker.halfOpen.probeTimeout", 30*time.Second, 10*time.Millisecond, 10*time.Minute, "A probe that never settles gives its slot back.")
	t[BreakerReopenMultiplier] = decimal("breaker.reopen.multiplier", 1, 1, 10, "Growth of openFor each time a probe fails.")
	t[BreakerReopenMax] = duration("breaker.reopen.max", 2*time.Minute, time.Second, time.Hour, "Cap of the grown openFor.")
	t[BreakerReopenJitter] = ratio("breaker.reopen.jitter", 0.1, "Share added to openFor at most, so that a fleet does not probe in step.")
	t[BreakerRecoverOver] = duration("breaker.recover.over", 10*time.Second, 0, 10*time.Minute, "Time over which the admitted share rises from 10 % to 100 % after closing; 0: at once.")

	t[HedgingEnabled] = flag("hedging.enabled", false, "Send again while the first attempt is slow; on when the block is set.")
	t[HedgingAfter] = text("hedging.after", "Wait before the extra send: a duration, or p95 of what first attempts take.").def(Text("p95"))
	t[HedgingMax] = integer("hedging.max", 1, 1, 2, "Extra sends per call; they count against maxAttempts and the budget.")

	t[ConcurrencyEnabled] = flag("concurrency.enabled", false, "Bound the calls at once; on when the block is set.")
	t[ConcurrencyLimit] = integer("concurrency.limit", 64, 1, 100_000, "Calls at once on one instance; a call keeps its slot to its end, waits between attempts included.")
	t[ConcurrencyQueue] = integer("concurrency.queue", 0, 0, 100_000, "Callers that may wait, first come first served, when whenFull is wait.")
	t[ConcurrencyWhenFull] = enum("concurrency.whenFull", "reject", []string{"reject", "wait"}, "What happens to a call above the limit.")

	t[FallbackMode] = enum("fallback.mode", "none", []string{"none", "cached", "static", "fail-fast"}, "Fallback that code with one is told to use.")
	t[FallbackCachedMaxAge] = duration("fallback.cached.maxAge", 5*time.Minute, time.Second, 720*time.Hour, "Oldest kept value that may be used.")
	t[FallbackStaticStatus] = integer("fallback.static.status", 503, 100, 599, "Status of the static answer.")
	t[FallbackStaticContentType] = text("fallback.static.contentType", "Content type of the static answer.")
	t[FallbackStaticBody] = text("fallback.static.body", "Body of the static answer.")

	t[OfflineQueueEnabled] = flag("offlineQueue.enabled", false, "Calls for which code asks may be kept and sent later; on when the block is set.")
	t[OfflineQueueMaxItems] = integer("offlineQueue.maxItems", 50, 1, 10_000, "Calls kept per endpoint.")
	t[OfflineQueueTTL] = duration("offlineQueue.ttl", 12*time.Hour, time.Second, 720*time.Hour, "Oldest call that is still sent; below idempotency.key.remembered.")
	t[OfflineQueueOrder] = enum("offlineQueue.order", "fifo", []string{"fifo"}, "Order in which kept calls are sent.")

	t[NestedMark] = flag("nested.mark", false, "Mark attempts that may be repeated, in baggage to endpoints and hosts of services that a policy matches.")
	t[NestedWhenMarked] = enum("nested.whenMarked", "normal", []string{"normal", "single-attempt"}, "What calls made for a request that arrived marked may do.")

	t[CeilingsMaxAttempts] = integer("ceilings.maxAttempts", 5, 1, 10, "Greatest maxAttempts below this scope.").ceiling()
	t[CeilingsBudgetRatio] = ratio("ceilings.budgetRatio", 0.10, "Greatest budget.ratio below this scope.").ceiling()
	t[CeilingsMinRetriesPerSecond] = decimal("ceilings.minRetriesPerSecond", 5, 0, 1000, "Greatest budget.minRetriesPerSecond below this scope.").ceiling()
	t[CeilingsTimeoutsOverall] = duration("ceilings.timeoutsOverall", time.Minute, time.Millisecond, time.Hour, "Greatest timeouts.overall below this scope.").ceiling()
	t[RequirementsJitter] = set("requirements.jitter", nil, jitterWords, "Jitter modes allowed below this scope.").noDefault().ceiling()
	t[RequirementsSuccessGate] = flag("requirements.successGate", false, "The success gate may not be switched off below this scope.").ceiling()
	return t
}

func field(path string, kind Kind, doc string) FieldSpec {
	return FieldSpec{Path: path, Kind: kind, Doc: doc, From: LevelGlobal, To: LevelEndpoint}
}

func (s FieldSpec) def(v Value) FieldSpec   { s.Default = &v; return s }
func (s FieldSpec) noDefault() FieldSpec    { s.Default = nil; return s }
func (s FieldSpec) own() FieldSpec          { s.Own = true; s.Default = nil; return s }
func (s FieldSpec) least(n int64) FieldSpec { s.Min = n; return s }

func (s FieldSpec) levels(from, to Level) FieldSpec { s.From, s.To = from, to; return s }

// ceiling marks bounds that a scope sets for those below it.
func (s FieldSpec) ceiling() FieldSpec { return s.levels(LevelGlobal, LevelService) }

func (s FieldSpec) bounds(lo, hi int64) FieldSpec {
	s.Bounded, s.Min, s.Max = true, lo, hi
	return s
}

func text(path, doc string) FieldSpec { return field(path, KindText, doc) }

func flag(path string, def bool, doc string) FieldSpec {
	return field(path, KindBool, doc).def(Bool(def))
}

func integer(path string, def, lo, hi int64, doc string) FieldSpec {
	return field(path, KindInt, doc).def(Int(def)).bounds(lo, hi)
}

func decimal(path string, def, lo, hi float64, doc string) FieldSpec {
	d, _ := Decimal(def)
	l, _ := Decimal(lo)
	h, _ := Decimal(hi)
	return field(path, KindDecimal, doc).def(d).bounds(l.Int, h.Int)
}

func ratio(path string, def float64, doc string) FieldSpec {
	return decimal(path, def, 0, 1, doc)
}

func duration(path string, def, lo, hi time.Duration, doc string) FieldSpec {
	return field(path, KindDuration, doc).def(Duration(def)).bounds(int64(lo), int64(hi))
}

func enum(path, def string, words []string, doc string) FieldSpec {
	s := field(path, KindEnum, doc).def(Enum(def))
	s.Words = words
	return s
}

func set(path string, def, words []string, doc string) FieldSpec {
	s := field(path, KindSet, doc).def(Set(def...))
	s.Words = words
	return s
}
