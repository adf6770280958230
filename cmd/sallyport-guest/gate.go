package main

func runGate(args []string) int { return 1 }
