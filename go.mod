module github.com/policyd/policyd

go 1.26.0

require github.com/policyd/policyd/sdk/go v0.0.0

replace github.com/policyd/policyd/sdk/go => ./sdk/go
