// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	_ "embed"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/policyd/policyd/internal/document"
	"github.com/policyd/policyd/internal/wire"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

//go:embed policies.yaml
var policies []byte

// Seed writes the demo's policies to the policyd at addr unless it has any.
func Seed(ctx context.Context, addr string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach policyd at %s: %w", addr, err)
	}
	defer conn.Close()
	admin := policydv1.NewAdminServiceClient(conn)
	have, err := admin.ListPolicies(ctx, &policydv1.ListPoliciesRequest{})
	if err != nil || len(have.GetPolicies()) > 0 {
		return err
	}
	documents, err := document.Decode("policies.yaml", policies)
	if err != nil {
		return err
	}
	req := &policydv1.ApplyPoliciesRequest{Reason: "demo", Via: "policyd dev"}
	mustNotExist := int64(0)
	for _, d := range documents {
		req.Changes = append(req.Changes, &policydv1.PolicyChange{Policy: wire.PolicyProto(d.Policy), ExpectedRevision: &mustNotExist})
	}
	_, err = admin.ApplyPolicies(ctx, req)
	return err
}
