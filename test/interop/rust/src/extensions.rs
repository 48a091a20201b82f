//! The checks of extensions: MCP Apps, Skills, tasks.

use std::error::Error;
use std::time::Duration;

use rmcp::model::*;
use serde_json::{Value, json};

use crate::client::VIEW_TYPE;
use crate::features::Peer;
use crate::report::{Report, holds, of, refused, same};

impl Peer {
    /// A tool with a view; the SDK only carries what there is to say of it.
    pub async fn apps(&self, report: &mut Report) {
        // A tool has no _meta before.
        if self.version() < "2025-06-18" {
            return;
        }
        report.check("gets the view of a tool", async {
            let tools = serde_json::to_value(self.0.list_all_tools().await?)?;
            let mut all = tools.as_array().into_iter().flatten();
            let clock = all.find(|tool| tool["name"] == "clock").ok_or("no tool clock")?;
            let uri = &clock["_meta"]["ui"]["resourceUri"];
            let view = self.0.read_resource(of(json!({"uri": uri}))).await?;
            let contents = serde_json::to_value(view.contents)?;
            same(&contents[0]["mimeType"], json!(VIEW_TYPE))?;
            let result = self.call("clock", json!({})).await?;
            same(&result.structured_content.unwrap_or_default()["shown"], json!(true))
        }).await;
    }

    pub async fn skills(&self, report: &mut Report) {
        // The extension is of the revisions that have extensions.
        if self.version() < "2025-11-25" {
            return;
        }
        let mut skills = Vec::new();
        report.check("lists the skills", async {
            skills = self.0.list_all_skills().await?;
            validate_skills(&skills)?;
            let mut names: Vec<_> = skills.iter().map(|skill| skill.name()).collect();
            names.sort();
            same(names, json!(["pdf-processing", "try-everything"]))
        }).await;
        report.check("gets a skill", async {
            for skill in &skills {
                let got = self.0.get_skill(GetSkillRequestParams::new(&skill.uri)).await?;
                holds(got.skill == *skill, format!("got {:?}", got.skill))?;
            }
            Ok(())
        }).await;
        report.check("reads and verifies every file of the skills", async {
            for skill in &skills {
                let SkillResources::Files(files) = &skill.resources else {
                    return Err("the files are not listed".into());
                };
                holds(!files.is_empty(), "no files")?;
                for file in files {
                    let read = self.0.read_resource(of(json!({"uri": file.uri}))).await?;
                    let contents = serde_json::to_value(read.contents)?;
                    let text = contents[0]["text"].as_str().ok_or("it is not text")?;
                    file.verify(text.as_bytes())?;
                }
            }
            Ok(())
        }).await;
        report.check("reads the folder of a skill", async {
            let skill = skills.iter().find(|skill| skill.name() == "pdf-processing");
            let uri = skill.ok_or("no skill")?.uri.trim_end_matches("/SKILL.md");
            let read = self.0.read_resource_directory(of(json!({"uri": uri}))).await?;
            let children: Vec<_> =
                read.resources.iter().map(|child| child.uri.trim_start_matches(uri)).collect();
            same(children, json!(["/SKILL.md", "/references", "/scripts", "/templates"]))
        }).await;
        report.check("is refused an unknown skill with -32602", async {
            let params = GetSkillRequestParams::new("skill://no-such-skill/SKILL.md");
            refused(-32602, self.0.get_skill(params).await).map(drop)
        }).await;
    }

    /// The extension of 2026-07-28; the SDK has no tasks of 2025-11-25.
    pub async fn tasks(&self, report: &mut Report) {
        if !self.modern() {
            return;
        }
        report.check("polls a task and gets its result", async {
            let task = self.begun("slow_compute", json!({"seconds": 1, "label": "it all"})).await?;
            let result = self.result(&task).await?;
            same(&result["content"][0]["text"], json!("Computed it all"))
        }).await;
        report.check("gets the error of a tool from a task", async {
            let result = self.result(&self.begun("failing_job", json!({})).await?).await?;
            same(&result["isError"], json!(true))
        }).await;
        report.check("gets the error of a task that crashed", async {
            let task = self.begun("protocol_error_job", json!({})).await?;
            match self.ended(&task).await? {
                TaskPayload::Failed { error } => same(&error["code"], json!(-32603)),
                other => Err(format!("got {other:?}").into()),
            }
        }).await;
        report.check("answers what a task asks", async {
            let task = self.begun("multi_input", json!({})).await?;
            let TaskPayload::InputRequired { input_requests } = self.ended(&task).await? else {
                return Err("it asks nothing".into());
            };
            same(input_requests.len(), json!(2))?;
            let name = json!({"action": "accept", "content": {"name": "Ada"}});
            let confirm = json!({"action": "decline"});
            // The keys are the task's own, each used once.
            let answer = |key: &String| if key.starts_with("name") { &name } else { &confirm };
            let answers = input_requests.keys().map(|key| (key.clone(), answer(key).clone()));
            self.0.update_task(UpdateTaskParams::new(&task, answers.collect())).await?;
            let result = self.result(&task).await?;
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            same(serde_json::from_str::<Value>(text)?, json!({"name": name, "confirm": confirm}))
        }).await;
        report.check("answers what a call asks before it is a task", async {
            let called = self.0.call_tool_once(of(json!({"name": "test_tool_with_task"}))).await?;
            let CallToolResponse::InputRequired(asked) = called else {
                return Err("it asks nothing".into());
            };
            let asked = serde_json::to_value(asked)?;
            let task = self.task(json!({
                "name": "test_tool_with_task",
                "requestState": asked["requestState"],
                "inputResponses": {
                    "user_name": {"action": "accept", "content": {"name": "Ada"}},
                },
            })).await?;
            let result = self.result(&task).await?;
            same(&result["content"][0]["text"], json!("Hello, Ada!"))
        }).await;
        report.check("cancels a task", async {
            let task = self.begun("slow_compute", json!({"seconds": 60})).await?;
            self.0.cancel_task(CancelTaskParams::new(&task)).await?;
            let end = self.ended(&task).await?;
            holds(matches!(end, TaskPayload::Cancelled), format!("got {end:?}"))
        }).await;
        report.check("is refused an unknown task with -32602", async {
            refused(-32602, self.0.get_task(GetTaskParams::new("no-such-task")).await).map(drop)
        }).await;
    }

    async fn begun(&self, name: &str, arguments: Value) -> Result<String, Box<dyn Error>> {
        self.task(json!({"name": name, "arguments": arguments})).await
    }

    async fn task(&self, params: Value) -> Result<String, Box<dyn Error>> {
        match self.0.call_tool_once(of(params)).await? {
            CallToolResponse::Task(made) => Ok(made.task.task_id),
            other => Err(format!("expected a task, got {other:?}").into()),
        }
    }

    /// What the task has to say once it does not work any more.
    async fn ended(&self, task: &str) -> Result<TaskPayload, Box<dyn Error>> {
        loop {
            match self.0.get_task(GetTaskParams::new(task)).await?.task.payload {
                TaskPayload::Working => tokio::time::sleep(Duration::from_millis(50)).await,
                payload => return Ok(payload),
            }
        }
    }

    async fn result(&self, task: &str) -> Result<Value, Box<dyn Error>> {
        match self.ended(task).await? {
            TaskPayload::Completed { result } => Ok(Value::Object(result)),
            other => Err(format!("expected a result, got {other:?}").into()),
        }
    }
}
