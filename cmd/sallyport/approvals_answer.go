package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"sallyport.dev/api/sallyport/v1"
	"sallyport.dev/errs"
)

type approvalsAnswerCmd struct {
	ID     string `arg:"" help:"The question or its call, or a unique beginning of either id."`
	With   string `help:"The answer, as a JSON object." xor:"answer" placeholder:"JSON"`
	File   string `help:"Read the answer from this file; - is standard input." xor:"answer" placeholder:"FILE"`
	Digest string `help:"The digest that was shown." placeholder:"DIGEST"`
}

const maxAnswer = 1 << 20

// Run answers a question that wants more than yes or no: a server's form, or a tool that a person answers. Without an answer it shows the form.
func (c *approvalsAnswerCmd) Run(ctx context.Context, g *Globals) error {
	api, err := g.client()
	if err != nil {
		return err
	}
	shown, err := answer(api.ShowApproval(ctx, &sallyportv1.ShowApprovalRequest{Id: c.ID}))
	if err != nil {
		return err
	}
	raw, err := c.bytes(g)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		if g.JSON {
			g.printJSON(shown)
			return nil
		}
		fmt.Fprintf(g.out, "%s\n\nthe answer must be a JSON object of this form:\n%s\n", visible(shown.GetAsks()), visible(indented(shown.GetForm())))
		return errs.New(errs.Invalid, "give the answer with --with or --file")
	}
	digest := c.Digest
	if digest == "" {
		digest = shown.GetApproval().GetDigest()
	}
	r, err := answer(api.Decide(ctx, &sallyportv1.DecideRequest{Approval: shown.GetApproval().GetId(), Digest: digest, Decision: "answer", Answer: raw}))
	if err != nil {
		return decided(err)
	}
	if g.JSON {
		g.printJSON(r)
		return nil
	}
	fmt.Fprintln(g.out, "answered; the call goes on")
	return nil
}

func (c *approvalsAnswerCmd) bytes(g *Globals) ([]byte, error) {
	switch c.File {
	case "":
		return []byte(c.With), nil
	case "-":
		return io.ReadAll(io.LimitReader(g.in, maxAnswer))
	}
	b, err := os.ReadFile(c.File)
	if err != nil {
		return nil, errs.Wrap(errs.NotFound, c.File+" cannot be read", err)
	}
	return b, nil
}
