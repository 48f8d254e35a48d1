"""Network proxies that inject faults between nodes, PostgreSQL and the chain."""
