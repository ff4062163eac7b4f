// SPDX-License-Identifier: Apache-2.0

package engine

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func fnv1a(h uint64, s string) uint64 {
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// mix64 is the finaliser of murmur3: it spreads FNV's weak high bits over the word.
func mix64(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}

// EntryHash is the share of one entry in the hash of a state: the hash of a state is the
// sum, modulo 2^64, over its entries. Key is the storage key below the version prefix.
func EntryHash(key string, revision int64) uint64 {
	h := fnv1a(fnvOffset, key)
	h *= fnvPrime // of the byte 0
	for shift := 56; shift >= 0; shift -= 8 {
		h = (h ^ uint64(byte(uint64(revision)>>shift))) * fnvPrime
	}
	return mix64(h)
}

// instanceHash is stable for a switch on an instance.
func instanceHash(switchID, instance string) uint64 {
	h := fnv1a(fnvOffset, switchID) * fnvPrime // of the byte 0
	return mix64(fnv1a(h, instance))
}
